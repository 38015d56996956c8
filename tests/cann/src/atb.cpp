// ATB: the operators that torch_npu takes from libatb, of which paged attention and its cache write are emulated.
//
// ATB is a C++ interface: torch_npu's own library calls the virtual functions of Operation and Context and reads the
// structures below. They are declared anew here with the layout that torch_npu 2.13 was compiled with; ATB's headers
// are not in the wheel. Only the members that are used are meaningful.
#include "kernels/attention.h"

#define ATB_API __attribute__((visibility("default")))

namespace atb {

using Status = int32_t;
constexpr Status kSuccess = 0, kInvalidParam = 1;

struct Dims {
  int64_t dims[8];
  uint64_t dimNum = 0;
};
struct TensorDesc {
  aclDataType dtype;
  aclFormat format;
  Dims shape;
};
struct Tensor {
  TensorDesc desc;
  void* deviceData;
  void* hostData;
  uint64_t dataSize;
};
template <class T>
struct SVector {
  size_t capacity;
  size_t size;
  T storage[65];
  T* heap;
  const T* begin() const { return heap ? heap : storage; }
};
struct VariantPack {
  SVector<Tensor> inTensors;
  SVector<Tensor> outTensors;
};

class ATB_API Context {
 public:
  virtual ~Context() = default;
  virtual Status SetExecuteStream(aclrtStream stream) {
    stream_ = stream;
    return kSuccess;
  }
  virtual aclrtStream GetExecuteStream() const { return stream_; }
  virtual Status SetAsyncTilingCopyStatus(bool) { return kSuccess; }
  virtual bool GetAsyncTilingCopyStatus() const { return false; }

 private:
  aclrtStream stream_ = nullptr;
};

class ATB_API Operation {
 public:
  virtual ~Operation() = default;
  virtual std::string GetName() const = 0;
  virtual Status InferShape(const SVector<TensorDesc>&, SVector<TensorDesc>&) const { return kInvalidParam; }
  virtual uint32_t GetInputNum() const { return 0; }
  virtual uint32_t GetOutputNum() const { return 1; }
  virtual Status Setup(const VariantPack&, uint64_t& workspace, Context*) {
    workspace = 1024;  // nothing needs it; a real size exercises the host side
    return kSuccess;
  }
  virtual Status Execute(const VariantPack& pack, uint8_t*, uint64_t, Context* context) = 0;
};

ATB_API Status CreateContext(Context** context) {
  *context = new Context;
  return kSuccess;
}
ATB_API Status DestroyContext(Context* context) {
  delete context;
  return kSuccess;
}
ATB_API Status DestroyOperation(Operation* operation) {
  delete operation;
  return kSuccess;
}

struct Utils {
  ATB_API static uint64_t GetTensorSize(const Tensor& tensor);
};
uint64_t Utils::GetTensorSize(const Tensor& tensor) {
  uint64_t count = tensor.desc.shape.dimNum ? 1 : 0;
  for (uint64_t i = 0; i < tensor.desc.shape.dimNum; ++i) count *= tensor.desc.shape.dims[i];
  return count * emu::element_size(tensor.desc.dtype);
}

namespace infer {
struct LinearParam;
struct ElewiseParam;
struct RmsNormParam;
struct GroupTopkParam;
struct SelfAttentionParam;
struct RopeParam;
// The leading members only: what follows them is not read.
struct PagedAttentionParam {
  int32_t headNum;
  float qkScale;
  int32_t kvHeadNum;
  int maskType;
};
struct ReshapeAndCacheParam {
  int compressType;
  int kvCacheCfg;
};
}  // namespace infer

namespace {

// ATB tensors are contiguous. Lengths may lie in host memory, which the emulator can read as well.
emu::View view(const Tensor& tensor) {
  const emu::Dims shape(tensor.desc.shape.dims, tensor.desc.shape.dims + tensor.desc.shape.dimNum);
  return emu::View(tensor.desc.dtype, shape, tensor.deviceData ? tensor.deviceData : tensor.hostData);
}

// query [B, N, D], caches [blocks, block size, NK, D], block table [B, blocks], lengths [B].
class PagedAttention : public Operation {
 public:
  explicit PagedAttention(const infer::PagedAttentionParam& param) : param_(param) {}
  std::string GetName() const override { return "PagedAttentionOperation"; }
  Status Execute(const VariantPack& pack, uint8_t*, uint64_t, Context* context) override {
    if (param_.maskType != 0) return emu::fail(kInvalidParam, "PagedAttentionOperation: masks are not emulated");
    const Tensor* in = pack.inTensors.begin();
    const emu::View query = view(in[0]), keys = view(in[1]), values = view(in[2]), table = view(in[3]);
    const emu::View out = view(pack.outTensors.begin()[0]);
    // Lengths in host memory are parameters: their values belong to this launch, as they do for a task update.
    const emu::View lengths_view = view(in[4]);
    const bool on_host = !in[4].deviceData;
    const auto given = on_host ? emu::dense<int64_t>(lengths_view) : emu::Values<int64_t>();
    const double scale = param_.qkScale;
    return emu::launch(context->GetExecuteStream(), GetName(), [=] {
      const auto lengths = on_host ? given : emu::dense<int64_t>(lengths_view);
      for (size_t b = 0; b < lengths.size(); ++b) {
        const int64_t row = static_cast<int64_t>(b);
        emu::Values<float> key_storage, value_storage;
        emu::Sequence one;
        one.query = query.select(0, row).unsqueeze(1);
        one.out = out.select(0, row).unsqueeze(1);
        one.key = emu::gather_pages(keys, table.select(0, row), lengths[b], key_storage);
        one.value = emu::gather_pages(values, table.select(0, row), lengths[b], value_storage);
        emu::attend(one, {scale, emu::Causal::kNone});
      }
    });
  }

 private:
  infer::PagedAttentionParam param_;
};

// key, value [tokens, NK, D] into caches [blocks, block size, NK, D] at the slots.
class ReshapeAndCache : public Operation {
 public:
  explicit ReshapeAndCache(const infer::ReshapeAndCacheParam& param) : param_(param) {}
  std::string GetName() const override { return "ReshapeAndCacheOperation"; }
  Status Execute(const VariantPack& pack, uint8_t*, uint64_t, Context* context) override {
    if (param_.compressType != 0 || param_.kvCacheCfg != 0)
      return emu::fail(kInvalidParam, "ReshapeAndCacheOperation: only the plain cache layout is emulated");
    const Tensor* in = pack.inTensors.begin();
    const emu::View key = view(in[0]), value = view(in[1]), slots = view(in[4]);
    const emu::View keys = view(in[2]), values = view(in[3]);
    return emu::launch(context->GetExecuteStream(), GetName(), [=] {
      emu::scatter_pages(key, keys, slots);
      emu::scatter_pages(value, values, slots);
    });
  }

 private:
  infer::ReshapeAndCacheParam param_;
};

}  // namespace

template <class Param>
Status CreateOperation(const Param& param, Operation** operation);

template <>
ATB_API Status CreateOperation(const infer::PagedAttentionParam& param, Operation** operation) {
  *operation = new PagedAttention(param);
  return kSuccess;
}
template <>
ATB_API Status CreateOperation(const infer::ReshapeAndCacheParam& param, Operation** operation) {
  *operation = new ReshapeAndCache(param);
  return kSuccess;
}

#define NOT_EMULATED(Param)                                                                  \
  template <>                                                                                \
  ATB_API Status CreateOperation(const infer::Param&, Operation**) {                         \
    return emu::fail(kInvalidParam, "the ATB operation of " #Param " is not emulated");      \
  }
NOT_EMULATED(LinearParam)
NOT_EMULATED(ElewiseParam)
NOT_EMULATED(RmsNormParam)
NOT_EMULATED(GroupTopkParam)
NOT_EMULATED(SelfAttentionParam)
NOT_EMULATED(RopeParam)

}  // namespace atb
