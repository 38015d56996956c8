#include "strided.h"

#include <cstring>

namespace emu {
namespace {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};
struct Bool {
  uint8_t byte;
};

float to_float(Half half) {
  _Float16 value;
  memcpy(&value, &half.bits, sizeof value);
  return static_cast<float>(value);
}
float to_float(BFloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}
uint16_t half_bits(float value) {
  const _Float16 half = static_cast<_Float16>(value);
  uint16_t bits;
  memcpy(&bits, &half, sizeof bits);
  return bits;
}
uint16_t bfloat16_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);  // keeps NaN a NaN
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);                 // to nearest even
}

template <class C, class T>
C convert(T value) { return static_cast<C>(value); }
template <class C>
C convert(Half value) { return static_cast<C>(to_float(value)); }
template <class C>
C convert(BFloat16 value) { return static_cast<C>(to_float(value)); }
template <class C>
C convert(Bool value) { return static_cast<C>(value.byte != 0); }

template <class T, class C>
void put(T& to, C value) {
  // A float out of range has no defined integer; by way of int64 it wraps as PyTorch on x86 does.
  if constexpr (std::is_integral_v<T> && !std::is_integral_v<C>) to = static_cast<T>(static_cast<int64_t>(value));
  else to = static_cast<T>(value);
}
template <class C>
void put(Half& to, C value) { to.bits = half_bits(static_cast<float>(value)); }
template <class C>
void put(BFloat16& to, C value) { to.bits = bfloat16_bits(static_cast<float>(value)); }
template <class C>
void put(Bool& to, C value) { to.byte = value != 0; }

template <class F>
void with_type(aclDataType dtype, F f) {
  switch (dtype) {
    case ACL_FLOAT: return f(float{});
    case ACL_DOUBLE: return f(double{});
    case ACL_FLOAT16: return f(Half{});
    case ACL_BF16: return f(BFloat16{});
    case ACL_INT8: return f(int8_t{});
    case ACL_INT16: return f(int16_t{});
    case ACL_INT32: return f(int32_t{});
    case ACL_INT64: return f(int64_t{});
    case ACL_UINT8: return f(uint8_t{});
    case ACL_UINT16: return f(uint16_t{});
    case ACL_UINT32: return f(uint32_t{});
    case ACL_UINT64: return f(uint64_t{});
    case ACL_BOOL: return f(Bool{});
    default: throw Failure{ACL_ERROR_UNSUPPORTED_DATA_TYPE, "dtype " + std::to_string(dtype) + " has no arithmetic here"};
  }
}

}  // namespace

bool is_supported(aclDataType dtype) {
  try {
    with_type(dtype, [](auto) {});
    return true;
  } catch (const Failure&) {
    return false;
  }
}

void outside(int64_t start, int64_t length, size_t size) {
  reject("an argument of " + std::to_string(size) + " elements is too small: elements from " + std::to_string(start) + " to " +
         std::to_string(start + length - 1) + " are needed");
}

template <class C>
void read_row(aclDataType dtype, const char* from, int64_t stride, int64_t count, C* to) {
  with_type(dtype, [&](auto zero) {
    auto* typed = reinterpret_cast<const decltype(zero)*>(from);
    for (int64_t i = 0; i < count; ++i) to[i] = convert<C>(typed[i * stride]);
  });
}

template <class C>
void write_row(aclDataType dtype, char* to, int64_t stride, int64_t count, const C* from) {
  with_type(dtype, [&](auto zero) {
    auto* typed = reinterpret_cast<decltype(zero)*>(to);
    for (int64_t i = 0; i < count; ++i) put(typed[i * stride], from[i]);
  });
}

template <class C>
C read(aclDataType dtype, const char* from) {
  C value;
  read_row<C>(dtype, from, 1, 1, &value);
  return value;
}

template <class C>
void write(aclDataType dtype, char* to, C value) {
  write_row<C>(dtype, to, 1, 1, &value);
}

Rows::Rows(const Dims& shape, const View* views, int count) : views_(count) {
  done_ = product(shape) == 0;
  for (int k = 0; k < count; ++k) {
    data_[k] = done_ ? nullptr : views[k].first();
    item_[k] = static_cast<int64_t>(views[k].item());
  }
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) continue;
    bool merge = !shape_.empty();
    for (int k = 0; k < count; ++k) merge = merge && strides_[k].back() == views[k].strides[d] * shape[d];
    if (merge) shape_.back() *= shape[d];
    else shape_.push_back(shape[d]);
    for (int k = 0; k < count; ++k) {
      if (merge) strides_[k].back() = views[k].strides[d];
      else strides_[k].push_back(views[k].strides[d]);
    }
  }
  if (shape_.empty()) {  // a single element
    shape_.push_back(1);
    for (int k = 0; k < count; ++k) strides_[k].push_back(1);
  }
  index_.assign(shape_.size(), 0);
}

void Rows::next() {
  for (int d = static_cast<int>(shape_.size()) - 2; d >= 0; --d) {
    const bool carry = ++index_[d] == shape_[d];
    for (int k = 0; k < views_; ++k) {
      const int64_t step = strides_[k][d] * item_[k];
      data_[k] += carry ? step * (1 - shape_[d]) : step;
    }
    if (!carry) return;
    index_[d] = 0;
  }
  done_ = true;
}

template <class C>
void run_chunks(const View& out, std::initializer_list<const View*> inputs, const Chunk<C>& chunk) {
  constexpr int64_t kLength = 256;
  constexpr int kMost = 5;
  View views[kMost + 1] = {out};
  int count = 1;
  for (const View* input : inputs) views[count++] = input->expand(out.shape);
  if (is_rehearsal()) return;
  C storage[kMost + 1][kLength];
  C* buffers[kMost + 1];
  for (int k = 0; k <= kMost; ++k) buffers[k] = storage[k];
  Rows rows(out.shape, views, count);
  auto address = [&](int k, int64_t start) {
    return rows.data(k) + start * rows.stride(k) * static_cast<int64_t>(views[k].item());
  };
  for (; !rows.done(); rows.next()) {
    for (int64_t start = 0; start < rows.length(); start += kLength) {
      const int64_t length = std::min(kLength, rows.length() - start);
      for (int k = 1; k < count; ++k) read_row<C>(views[k].dtype, address(k, start), rows.stride(k), length, buffers[k]);
      chunk(buffers, length);
      write_row<C>(out.dtype, address(0, start), rows.stride(0), length, buffers[0]);
    }
  }
}

namespace {

template <class T>
void copy_row(char* to, int64_t to_stride, const char* from, int64_t from_stride, int64_t count) {
  auto* target = reinterpret_cast<T*>(to);
  auto* source = reinterpret_cast<const T*>(from);
  for (int64_t i = 0; i < count; ++i) target[i * to_stride] = source[i * from_stride];
}

void copy_bytes(const View& to, const View& from) {
  const View both[] = {to, from};
  for (Rows rows(to.shape, both, 2); !rows.done(); rows.next()) {
    if (rows.stride(0) == 1 && rows.stride(1) == 1) {
      memmove(rows.data(0), rows.data(1), rows.length() * to.item());
      continue;
    }
    switch (to.item()) {
      case 1: copy_row<uint8_t>(rows.data(0), rows.stride(0), rows.data(1), rows.stride(1), rows.length()); break;
      case 2: copy_row<uint16_t>(rows.data(0), rows.stride(0), rows.data(1), rows.stride(1), rows.length()); break;
      case 4: copy_row<uint32_t>(rows.data(0), rows.stride(0), rows.data(1), rows.stride(1), rows.length()); break;
      default: copy_row<uint64_t>(rows.data(0), rows.stride(0), rows.data(1), rows.stride(1), rows.length());
    }
  }
}

}  // namespace

void copy(const View& to, const View& from) {
  const View source = from.expand(to.shape);
  if (is_rehearsal()) return;
  if (to.dtype == from.dtype) return copy_bytes(to, source);
  map(to, [](auto x) { return x; }, source);
}

void fill(const View& to, double value) {
  compute({&to}, [&](auto zero) {
    using C = decltype(zero);
    map_as<C>(to, [value] { return static_cast<C>(value); });
  });
}

#define INSTANTIATE(C)                                                        \
  template C read<C>(aclDataType, const char*);                               \
  template void write<C>(aclDataType, char*, C);                              \
  template void read_row<C>(aclDataType, const char*, int64_t, int64_t, C*);  \
  template void write_row<C>(aclDataType, char*, int64_t, int64_t, const C*); \
  template void run_chunks<C>(const View&, std::initializer_list<const View*>, const Chunk<C>&);
INSTANTIATE(float)
INSTANTIATE(double)
INSTANTIATE(int64_t)


}  // namespace emu
