// Fused attention: npu_fused_infer_attention_score (layouts, lengths, paged KV), flash attention with its
// gradient, rotary embedding and KV cache writes.
#include "attention.h"

using namespace emu;

namespace emu {
namespace {

// Whether position t is hidden from query s, of `queries` and `keys`.
bool hidden(Causal causal, int64_t s, int64_t t, int64_t queries, int64_t keys) {
  switch (causal) {
    case Causal::kLeftUp: return t > s;
    case Causal::kRightDown: return t > s + keys - queries;
    default: return false;
  }
}

// The sizes of a sequence must agree.
const Sequence& checked(const Sequence& s) {
  const bool fits = s.query.dims() == 3 && s.key.dims() == 3 && s.value.dims() == 3 && s.key.shape[2] == s.query.shape[2] &&
                    s.value.shape[1] == s.key.shape[1] && s.value.shape[0] == s.key.shape[0] && s.key.shape[0] > 0 &&
                    s.query.shape[0] % s.key.shape[0] == 0;
  if (!fits) reject("a query of shape " + text(s.query.shape) + ", a key of " + text(s.key.shape) + " and a value of " + text(s.value.shape));
  return s;
}

struct Dense {
  Values<float> q, k, v, mask;
  int64_t heads, kv_heads, queries, keys, mask_keys, d, dv;
  explicit Dense(const Sequence& s)
      : q(dense<float>(checked(s).query)), k(dense<float>(s.key)), v(dense<float>(s.value)), heads(s.query.shape[0]),
        kv_heads(s.key.shape[0]), queries(s.query.shape[1]), keys(s.key.shape[1]), mask_keys(0), d(s.query.shape[2]),
        dv(s.value.shape[2]) {
    if (!s.mask.defined()) return;
    mask = dense<float>(s.mask);
    mask_keys = s.mask.shape[2];
  }
  int64_t probability(int64_t n, int64_t s, int64_t t) const { return (n * queries + s) * keys + t; }
  const float* query(int64_t n, int64_t s) const { return q.span((n * queries + s) * d, d); }
  int64_t kv_row(int64_t n, int64_t t) const { return n / (heads / kv_heads) * keys + t; }
  const float* key(int64_t n, int64_t t) const { return k.span(kv_row(n, t) * d, d); }
  const float* value(int64_t n, int64_t t) const { return v.span(kv_row(n, t) * dv, dv); }
  bool masked(int64_t n, int64_t s, int64_t t) const {
    return !mask.empty() && mask[(n * queries + s) * mask_keys + t] != 0;
  }
  // Scaled scores of one query, minus infinity where hidden.
  void scores(int64_t n, int64_t s, const AttentionOptions& options, Values<double>& p) const {
    for (int64_t t = 0; t < keys; ++t) {
      if (masked(n, s, t) || hidden(options.causal, s, t, queries, keys)) {
        p[t] = -INFINITY;
        continue;
      }
      double dot = 0;
      for (int64_t i = 0; i < d; ++i) dot += static_cast<double>(query(n, s)[i]) * key(n, t)[i];
      p[t] = dot * options.scale;
    }
  }
};

// Turns scores into probabilities; a row with nothing visible becomes zeros.
struct SoftmaxSums {
  double max, sum;
};
SoftmaxSums softmax(Values<double>& p) {
  double top = -INFINITY, total = 0;
  for (double x : p) top = std::max(top, x);
  if (top == -INFINITY) {
    std::fill(p.begin(), p.end(), 0);
    return {top, 0};
  }
  for (double& x : p) total += x = std::exp(x - top);
  for (double& x : p) x /= total;
  return {top, total};
}

void write_sums(const View& view, int64_t n, int64_t s, double value) {
  if (view.defined()) fill(view.select(0, n).select(0, s), value);
}

}  // namespace

void attend(const Sequence& sequence, const AttentionOptions& options) {
  const Dense x(sequence);
  Values<float> result(x.heads * x.queries * x.dv);
  Values<double> p(x.keys), row(x.dv);
  for (int64_t n = 0; n < x.heads; ++n)
    for (int64_t s = 0; s < x.queries; ++s) {
      x.scores(n, s, options, p);
      const SoftmaxSums sums = softmax(p);
      std::fill(row.begin(), row.end(), 0);
      for (int64_t t = 0; t < x.keys; ++t) {
        const double kept = p[t] * options.keep_factor(x.probability(n, s, t));
        for (int64_t i = 0; i < x.dv; ++i) row[i] += kept * x.value(n, t)[i];
      }
      std::copy(row.begin(), row.end(), result.span((n * x.queries + s) * x.dv, x.dv));
      write_sums(sequence.lse, n, s, sums.max + std::log(sums.sum));
      write_sums(sequence.softmax_max, n, s, sums.max);
      write_sums(sequence.softmax_sum, n, s, sums.sum);
    }
  assign(sequence.out, result);
}

View gather_pages(const View& cache, const View& table_row, int64_t length, Values<float>& storage) {
  const int64_t block_size = cache.shape[1], heads = cache.shape[2], d = cache.shape[3];
  storage.assign(heads * length * d, 0);
  const View pages(ACL_FLOAT, {heads, length, d}, storage.data());
  for (int64_t start = 0; start < length; start += block_size) {
    const int64_t block = read<int64_t>(table_row.dtype, table_row.at({start / block_size}));
    const int64_t count = std::min(block_size, length - start);
    if (block < 0 || block >= cache.shape[0])
      throw Failure{ACL_ERROR_INVALID_PARAM, "block table names block " + std::to_string(block) + " of " + std::to_string(cache.shape[0])};
    copy(pages.narrow(1, start, count), cache.select(0, block).narrow(0, 0, count).permute({1, 0, 2}));
  }
  return pages;
}

void scatter_pages(const View& rows, const View& cache, const View& slots) {
  const auto positions = dense<int64_t>(slots);
  const int64_t block_size = cache.shape[1];
  for (size_t i = 0; i < positions.size(); ++i) {
    const int64_t slot = positions[i];
    if (slot < 0) continue;
    if (slot >= cache.shape[0] * block_size)
      throw Failure{ACL_ERROR_INVALID_PARAM, "slot " + std::to_string(slot) + " lies outside of the cache"};
    copy(cache.select(0, slot / block_size).select(0, slot % block_size), rows.select(0, static_cast<int64_t>(i)));
  }
}

}  // namespace emu

namespace {

// Splits the last dimension into heads: [..., N * D] to [..., N, D].
View split_heads(const View& view, int64_t heads) {
  if (heads < 1 || view.size(-1) % heads) reject(std::to_string(heads) + " heads in a tensor of shape " + text(view.shape));
  View result = view;
  const int last = view.dims() - 1;
  const int64_t size = view.shape[last] / heads, stride = view.strides[last];
  result.shape[last] = heads;
  result.strides[last] = size * stride;
  result.shape.push_back(size);
  result.strides.push_back(stride);
  return result;
}

// A batch in any layout as [B, N, S, D]. TND and NTD hold all sequences one after the other and become [1, N, T, D].
View canonical(const std::string& layout, const View& view, int64_t heads) {
  if (layout == "BNSD") return view.permute({0, 1, 2, 3});
  if (layout == "BSND") return view.permute({0, 2, 1, 3});
  if (layout == "BSH") return split_heads(view, heads).permute({0, 2, 1, 3});
  if (layout == "SBH") return split_heads(view, heads).permute({1, 2, 0, 3});
  if (layout == "NSD" || layout == "NTD") return view.permute({0, 1, 2}).unsqueeze(0);
  if (layout == "TND") return view.permute({1, 0, 2}).unsqueeze(0);
  if (layout == "NBSD") return view.permute({1, 0, 2, 3});
  reject("layout " + layout + " is not emulated");
}
bool is_known(const std::string& layout) {
  for (const char* known : {"BNSD", "BSND", "BSH", "SBH", "NSD", "NTD", "TND", "NBSD"})
    if (layout == known) return true;
  return false;
}

bool is_packed(const std::string& layout) { return layout == "TND" || layout == "NTD"; }

// A mask of 2 to 4 dimensions as [B, N, S, T]; the short form for one query a sequence is [B, T].
View canonical_mask(View mask, int64_t batch, int64_t heads, int64_t queries) {
  if (!mask.defined()) return mask;
  if (mask.dims() == 2 && queries == 1 && mask.shape[0] == batch && batch != 1) mask = mask.unsqueeze(1);
  if (mask.dims() == 2) mask = mask.unsqueeze(0);
  if (mask.dims() == 3) mask = mask.unsqueeze(1);
  return mask.expand({batch, heads, queries, mask.size(3)});
}

// ---- npu_fused_infer_attention_score

enum SparseMode { kDefaultMask = 0, kAllMask = 1, kLeftUpCausal = 2, kRightDownCausal = 3 };

struct InferArguments {
  View query, key, value, mask, block_table, out, lse;
  Dims query_lengths, kv_lengths;
  int64_t heads, kv_heads, block_size, sparse_mode;
  double scale;
  std::string query_layout, out_layout;
  bool want_lse;
};

class InferAttention {
 public:
  explicit InferAttention(const InferArguments& a) : a_(a) {
    query_ = canonical(a.query_layout, a.query, a.heads);
    out_ = canonical(a.out_layout, a.out, a.heads);
    packed_ = is_packed(a.query_layout);
    paged_ = a.block_table.defined();
    if (paged_) {
      key_ = pages(a.key);
      value_ = pages(a.value);
    } else {
      key_ = canonical(a.query_layout, a.key, a.kv_heads);
      value_ = canonical(a.query_layout, a.value, a.kv_heads);
    }
    batch_ = packed_ ? static_cast<int64_t>(a.query_lengths.size()) : query_.shape[0];
  }

  void run() const {
    fill(a_.out, 0);  // rows past a query's length stay zero
    const bool compressed = a_.sparse_mode == kLeftUpCausal || a_.sparse_mode == kRightDownCausal;
    AttentionOptions options{a_.scale, Causal::kNone};
    if (a_.sparse_mode == kLeftUpCausal) options.causal = Causal::kLeftUp;
    if (a_.sparse_mode == kRightDownCausal) options.causal = Causal::kRightDown;
    const View mask = compressed || packed_ ? View{} : canonical_mask(a_.mask, batch_, a_.heads, query_.shape[2]);
    for (int64_t b = 0; b < batch_; ++b) {
      const Range queries = query_range(b);
      Values<float> key_storage, value_storage;
      Sequence one;
      one.query = query_.select(0, packed_ ? 0 : b).narrow(1, queries.start, queries.length);
      one.out = out_.select(0, packed_ ? 0 : b).narrow(1, queries.start, queries.length);
      const int64_t length = read_kv(b, one, key_storage, value_storage);
      if (mask.defined()) {
        if (mask.shape[3] < length) throw Failure{ACL_ERROR_INVALID_PARAM, "the attention mask is shorter than the keys"};
        one.mask = mask.select(0, b).narrow(1, queries.start, queries.length);
      }
      if (a_.want_lse) one.lse = lse_of(b, queries);
      attend(one, options);
    }
  }

 private:
  struct Range {
    int64_t start, length;
  };

  // Lengths of packed layouts are running totals, of the others one a sequence (or one for all).
  static Range range(const Dims& lengths, int64_t b, bool packed, int64_t all) {
    if (lengths.empty()) return {0, all};
    if (!packed) return {0, lengths[lengths.size() == 1 ? 0 : b]};
    const int64_t start = b ? lengths[b - 1] : 0;
    return {start, lengths[b] - start};
  }
  // With one query a sequence, CANN takes its incremental branch, which knows no lengths of queries.
  Range query_range(int64_t b) const {
    if (!packed_ && query_.shape[2] == 1) return {0, 1};
    return range(a_.query_lengths, b, packed_, query_.shape[2]);
  }

  int64_t read_kv(int64_t b, Sequence& one, Values<float>& key_storage, Values<float>& value_storage) const {
    const int64_t capacity = paged_ ? a_.block_table.shape[1] * a_.block_size : key_.shape[2];
    const Range keys = range(a_.kv_lengths, b, packed_ && !paged_, capacity);
    if (keys.start + keys.length > capacity)
      throw Failure{ACL_ERROR_INVALID_PARAM, "KV length " + std::to_string(keys.length) + " is larger than the cache of " + std::to_string(capacity)};
    if (paged_) {
      const View table = a_.block_table.select(0, b);
      one.key = gather_pages(key_, table, keys.length, key_storage);
      one.value = gather_pages(value_, table, keys.length, value_storage);
    } else {
      one.key = key_.select(0, packed_ ? 0 : b).narrow(1, keys.start, keys.length);
      one.value = value_.select(0, packed_ ? 0 : b).narrow(1, keys.start, keys.length);
    }
    return keys.length;
  }

  // [blocks, block size, H] or [blocks, NK, block size, D] as [blocks, block size, NK, D].
  View pages(const View& cache) const {
    return cache.dims() == 3 ? split_heads(cache, a_.kv_heads) : cache.permute({0, 2, 1, 3});
  }

  // [B, N, S, 1], or [T, N, 1] for packed layouts.
  View lse_of(int64_t b, const Range& queries) const {
    if (packed_) return a_.lse.narrow(0, queries.start, queries.length).select(2, 0).permute({1, 0});
    return a_.lse.select(0, b).select(2, 0).narrow(1, queries.start, queries.length);
  }

  InferArguments a_;
  View query_, key_, value_, out_;
  int64_t batch_;
  bool packed_, paged_;
};

// "BSH" or, for another layout of the output, "BNSD_BSND".
void split_layout(const std::string& layout, std::string& query, std::string& out) {
  const size_t at = layout.find('_');
  query = layout.substr(0, at);
  out = at == std::string::npos ? query : layout.substr(at + 1);
}

// Why these arguments are not emulated, empty if they are.
std::string unsupported(const InferArguments& a) {
  if (!is_known(a.query_layout)) return "layout " + a.query_layout + " is not emulated";
  if (!is_known(a.out_layout)) return "output layout " + a.out_layout + " is not emulated";
  if (a.sparse_mode > kRightDownCausal) return "sparse_mode " + std::to_string(a.sparse_mode) + " is not emulated";
  if (is_packed(a.query_layout) && a.query_lengths.empty()) return "layout " + a.query_layout + " needs actual_seq_lengths";
  if (is_packed(a.query_layout) && a.mask.defined() && a.sparse_mode < kLeftUpCausal)
    return "a full mask with layout " + a.query_layout + " is not emulated";
  if (a.block_table.defined() && a.key.dims() == 5) return "paged KV in NZ format is not emulated";
  return "";
}

}  // namespace

// Versions differ in the arguments they append; those that ask for quantization, shared prefixes, a separate rope
// or sinks must be absent.
#define INFER_TENSORS                                                                                                    \
  const aclTensor *query, const aclTensorList *key, const aclTensorList *value, const aclTensor *pse,                    \
      const aclTensor *mask, const aclIntArray *query_lengths, const aclIntArray *kv_lengths, const aclTensor *unused1,  \
      const aclTensor *unused2, const aclTensor *unused3, const aclTensor *unused4, const aclTensor *unused5,            \
      const aclTensor *unused6, const aclTensor *unused7, const aclTensor *block_table, const aclTensor *unused8,        \
      const aclTensor *unused9, const aclTensor *unused10, const aclTensor *unused11, const aclTensor *unused12,         \
      const aclTensor *unused13, const aclTensor *unused14, const aclTensor *unused15, const aclIntArray *
#define INFER_ROPE const aclTensor *query_rope, const aclTensor *key_rope, const aclTensor*
#define INFER_ATTRIBUTES                                                                                                 \
  int64_t heads, double scale, int64_t, int64_t, char *layout, int64_t kv_heads, int64_t sparse_mode, int64_t,           \
      int64_t block_size, int64_t, bool want_lse, int64_t, int64_t
#define INFER_BODY(has_rope)                                                                                             \
  const bool quantized = unused1 || unused2 || unused3 || unused4 || unused5 || unused6 || unused7 || unused8 ||         \
                         unused9 || unused10 || unused11 || unused12 || unused13 || unused14 || unused15;                \
  if (quantized || pse || (has_rope)) return REFUSE("quantization, shifts, prefixes, padding and rope are not emulated"); \
  InferArguments a{view(query), view(key->values[0]), view(value->values[0]), view(mask), view(block_table), view(out),  \
                   view(lse), values(query_lengths), values(kv_lengths), heads, kv_heads ? kv_heads : heads,             \
                   block_size, sparse_mode, scale, "", "", want_lse};                                                    \
  split_layout(layout, a.query_layout, a.out_layout);                                                                    \
  const std::string why = unsupported(a);                                                                                \
  if (!why.empty()) return REFUSE(why);                                                                                  \
  return PLAN([a] { InferAttention(a).run(); });

ACLNN(aclnnFusedInferAttentionScoreV2, INFER_TENSORS, INFER_ATTRIBUTES, const aclTensor* out, const aclTensor* lse) {
  INFER_BODY(false)
}
ACLNN(aclnnFusedInferAttentionScoreV3, INFER_TENSORS, INFER_ROPE, INFER_ATTRIBUTES, const aclTensor* out, const aclTensor* lse) {
  INFER_BODY(query_rope || key_rope)
}
ACLNN(aclnnFusedInferAttentionScoreV4, INFER_TENSORS, INFER_ROPE, const aclTensor*, const aclTensor* sink, INFER_ATTRIBUTES,
      int64_t, const aclTensor* out, const aclTensor* lse) {
  INFER_BODY(query_rope || key_rope || sink)
}
ACLNN(aclnnFusedInferAttentionScoreV5, INFER_TENSORS, INFER_ROPE, const aclTensor*, const aclTensor* sink, const aclIntArray*,
      const aclIntArray*, INFER_ATTRIBUTES, int64_t, int64_t, const aclTensor* out, const aclTensor* lse) {
  INFER_BODY(query_rope || key_rope || sink)
}

// The workspace that an updatable capture reserves for all later lengths. Kernels here need none; a real size is
// given so that the host side is exercised.
#define INFER_MAX_WORKSPACE(name, ...)                                                                        \
  EMU_API int name##GetMaxWorkspaceSize(__VA_ARGS__, uint64_t* workspace, aclOpExecutor** executor) {         \
    EMU_ENTER();                                                                                              \
    *workspace = 1024;                                                                                        \
    *executor = new aclOpExecutor{#name, [] {}};                                                              \
    return ACL_SUCCESS;                                                                                       \
  }
#define ANY_TENSOR const aclTensor*
#define ANY_TENSORS                                                                                                     \
  ANY_TENSOR, const aclTensorList*, const aclTensorList*, ANY_TENSOR, ANY_TENSOR, const aclIntArray*,                   \
      const aclIntArray*, ANY_TENSOR, ANY_TENSOR, ANY_TENSOR, ANY_TENSOR, ANY_TENSOR, ANY_TENSOR, ANY_TENSOR,           \
      ANY_TENSOR, ANY_TENSOR, ANY_TENSOR, ANY_TENSOR, ANY_TENSOR, ANY_TENSOR, ANY_TENSOR, ANY_TENSOR, ANY_TENSOR,       \
      const aclIntArray*
#define ANY_ATTRIBUTES \
  int64_t, double, int64_t, int64_t, char*, int64_t, int64_t, int64_t, int64_t, int64_t, bool, int64_t, int64_t
INFER_MAX_WORKSPACE(aclnnFusedInferAttentionScoreV3, ANY_TENSORS, ANY_TENSOR, ANY_TENSOR, ANY_TENSOR, ANY_ATTRIBUTES, ANY_TENSOR, ANY_TENSOR)
INFER_MAX_WORKSPACE(aclnnFusedInferAttentionScoreV4, ANY_TENSORS, ANY_TENSOR, ANY_TENSOR, ANY_TENSOR, ANY_TENSOR, ANY_TENSOR,
                    ANY_ATTRIBUTES, int64_t, ANY_TENSOR, ANY_TENSOR)
INFER_MAX_WORKSPACE(aclnnFusedInferAttentionScoreV5, ANY_TENSORS, ANY_TENSOR, ANY_TENSOR, ANY_TENSOR, ANY_TENSOR, ANY_TENSOR,
                    const aclIntArray*, const aclIntArray*, ANY_ATTRIBUTES, int64_t, int64_t, ANY_TENSOR, ANY_TENSOR)

// ---- flash attention, which scaled_dot_product_attention uses

namespace {

struct FlashArguments {
  View query, key, value, mask, out, drop_mask;
  AttentionOptions options;
  double keep;
  int64_t heads;
  std::string layout;
};

// The heads of the keys follow from their size: all layouts here keep the head dimension of the query.
int64_t kv_heads(const std::string& layout, const View& key, int64_t head_size) {
  if (layout == "BNSD") return key.size(1);
  if (layout == "BSND") return key.size(2);
  return head_size ? key.size(2) / head_size : 0;
}

// Sequence b of the batch; gradient arguments share the views' layout.
struct FlashViews {
  View query, key, value, out, mask;
  explicit FlashViews(const FlashArguments& a) {
    query = canonical(a.layout, a.query, a.heads);
    const int64_t key_heads = kv_heads(a.layout, a.key, query.shape[3]);
    key = canonical(a.layout, a.key, key_heads);
    value = canonical(a.layout, a.value, key_heads);
    out = canonical(a.layout, a.out, a.heads);
    if (a.options.causal == Causal::kNone) mask = canonical_mask(a.mask, query.shape[0], a.heads, query.shape[2]);
  }
  Sequence sequence(int64_t b) const {
    Sequence one;
    one.query = query.select(0, b);
    one.key = key.select(0, b);
    one.value = value.select(0, b);
    one.out = out.select(0, b);
    if (mask.defined()) one.mask = mask.select(0, b);
    return one;
  }
};

std::string flash_unsupported(const std::string& layout, const aclTensor* pse, const aclTensor* drop_mask,
                              const aclTensor* padding_mask, const aclIntArray* prefix, double keep_prob, int64_t sparse_mode) {
  if (layout != "BNSD" && layout != "BSND" && layout != "BSH" && layout != "SBH") return "layout " + layout + " is not emulated";
  if ((pse && pse->count()) || (padding_mask && padding_mask->count()) || !values(prefix).empty())
    return "shifts, padding masks and prefixes are not emulated";
  if (keep_prob < 1 && !(drop_mask && drop_mask->count())) return "dropout without a mask is not emulated";
  if (sparse_mode > kRightDownCausal) return "sparse_mode " + std::to_string(sparse_mode) + " is not emulated";
  return "";
}

View present(const aclTensor* tensor) { return tensor && tensor->count() ? view(tensor) : View{}; }

FlashArguments flash_arguments(const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* mask,
                               const aclTensor* drop_mask, const aclTensor* out, double scale, double keep, int64_t heads,
                               const char* layout, int64_t sparse_mode) {
  const Causal causal = sparse_mode == kLeftUpCausal      ? Causal::kLeftUp
                        : sparse_mode == kRightDownCausal ? Causal::kRightDown
                                                          : Causal::kNone;
  return {view(query), view(key), view(value), present(mask), view(out), present(drop_mask), {scale, causal}, keep, heads, layout};
}

// The options of the b-th sequence; `dropout` is to outlive them.
AttentionOptions options_of(const FlashArguments& a, const FlashViews& views, int64_t b, const Dropout& dropout) {
  AttentionOptions options = a.options;
  if (a.keep < 1) options.dropout = &dropout;
  options.first_probability = b * a.heads * views.query.size(2) * views.key.size(2);
  return options;
}
Dropout dropout_of(const FlashArguments& a) { return {a.keep < 1 ? dense<int64_t>(a.drop_mask) : Values<int64_t>(), a.keep}; }

void flash_grad(const FlashArguments& a, const View& grad, const View& grad_query, const View& grad_key, const View& grad_value) {
  const FlashViews views(a);
  const int64_t key_heads = views.key.shape[1];
  const View g = canonical(a.layout, grad, a.heads), gq = canonical(a.layout, grad_query, a.heads);
  const View gk = canonical(a.layout, grad_key, key_heads), gv = canonical(a.layout, grad_value, key_heads);
  const Dropout dropout = dropout_of(a);
  for (int64_t b = 0; b < views.query.shape[0]; ++b) {
    const AttentionOptions options = options_of(a, views, b, dropout);
    const Dense x(views.sequence(b));
    const auto dy = dense<float>(g.select(0, b));
    Values<double> dq(x.q.size()), dk(x.k.size()), dv(x.v.size()), p(x.keys), dp(x.keys);
    for (int64_t n = 0; n < x.heads; ++n)
      for (int64_t s = 0; s < x.queries; ++s) {
        x.scores(n, s, options, p);
        softmax(p);
        const float* dout = dy.span((n * x.queries + s) * x.dv, x.dv);
        double total = 0;
        for (int64_t t = 0; t < x.keys; ++t) {
          dp[t] = 0;
          const double factor = options.keep_factor(x.probability(n, s, t));
          for (int64_t i = 0; i < x.dv; ++i) {
            dp[t] += factor * dout[i] * x.value(n, t)[i];
            dv[x.kv_row(n, t) * x.dv + i] += factor * p[t] * dout[i];
          }
          total += p[t] * dp[t];
        }
        for (int64_t t = 0; t < x.keys; ++t) {
          const double ds = p[t] * (dp[t] - total) * a.options.scale;
          for (int64_t i = 0; i < x.d; ++i) {
            dq[(n * x.queries + s) * x.d + i] += ds * x.key(n, t)[i];
            dk[x.kv_row(n, t) * x.d + i] += ds * x.query(n, s)[i];
          }
        }
      }
    assign(gq.select(0, b), dq);
    assign(gk.select(0, b), dk);
    assign(gv.select(0, b), dv);
  }
}

}  // namespace

ACLNN(aclnnFlashAttentionScore, const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* pse,
      const aclTensor* drop_mask, const aclTensor* padding_mask, const aclTensor* mask, const aclIntArray* prefix, double scale,
      double keep_prob, int64_t, int64_t, int64_t heads, char* layout, int64_t, int64_t sparse_mode, const aclTensor* softmax_max,
      const aclTensor* softmax_sum, const aclTensor*, const aclTensor* out) {
  const std::string why = flash_unsupported(layout, pse, drop_mask, padding_mask, prefix, keep_prob, sparse_mode);
  if (!why.empty()) return REFUSE(why);
  return PLAN([a = flash_arguments(query, key, value, mask, drop_mask, out, scale, keep_prob, heads, layout, sparse_mode), top = view(softmax_max),
               total = view(softmax_sum)] {
    const FlashViews views(a);
    const Dropout dropout = dropout_of(a);
    for (int64_t b = 0; b < views.query.shape[0]; ++b) {
      Sequence one = views.sequence(b);
      one.softmax_max = top.select(0, b);
      one.softmax_sum = total.select(0, b);
      attend(one, options_of(a, views, b, dropout));
    }
  });
}
// The probabilities are computed again, so the saved maxima and sums are not read.
ACLNN(aclnnFlashAttentionScoreGrad, const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* grad,
      const aclTensor* pse, const aclTensor* drop_mask, const aclTensor* padding_mask, const aclTensor* mask, const aclTensor*,
      const aclTensor*, const aclTensor*, const aclTensor* attention, const aclIntArray* prefix, double scale, double keep_prob,
      int64_t, int64_t, int64_t heads, char* layout, int64_t, int64_t sparse_mode, const aclTensor* grad_query,
      const aclTensor* grad_key, const aclTensor* grad_value, const aclTensor*) {
  const std::string why = flash_unsupported(layout, pse, drop_mask, padding_mask, prefix, keep_prob, sparse_mode);
  if (!why.empty()) return REFUSE(why);
  return PLAN([a = flash_arguments(query, key, value, mask, drop_mask, attention, scale, keep_prob, heads, layout, sparse_mode), g = view(grad),
               gq = view(grad_query), gk = view(grad_key), gv = view(grad_value)] { flash_grad(a, g, gq, gk, gv); });
}

// ---- rotary embedding

namespace {
enum RotaryMode { kHalf = 0, kInterleave = 1 };
// x * cos + rotate(x) * sin, where rotate swaps pairs and negates the first of each.
Work rotary(const View& x, const View& cos, const View& sin, int64_t mode, const View& out) {
  return [=] {
    const int last = x.dims() - 1;
    const int64_t half = x.shape[last] / 2;
    auto part = [&](const View& view, int which) {
      return mode == kHalf ? view.narrow(last, which * half, half) : view.narrow(last, which, half, 2);
    };
    const View c = cos.expand(x.shape), s = sin.expand(x.shape);
    Values<float> copied = dense<float>(x);  // out may be x
    const View source(ACL_FLOAT, x.shape, copied.data());
    map_floating(part(out, 0), [](auto a, auto b, auto p, auto q) { return a * p - b * q; }, part(source, 0), part(source, 1), part(c, 0), part(s, 0));
    map_floating(part(out, 1), [](auto a, auto b, auto p, auto q) { return b * p + a * q; }, part(source, 0), part(source, 1), part(c, 1), part(s, 1));
  };
}
}  // namespace
ACLNN(aclnnRotaryPositionEmbedding, const aclTensor* self, const aclTensor* cos, const aclTensor* sin, int64_t mode, const aclTensor* out) {
  if (mode > kInterleave) return REFUSE("rotary mode " + std::to_string(mode) + " is not emulated");
  return PLAN(rotary(view(self), view(cos), view(sin), mode, view(out)));
}

// ---- KV cache

ACLNN(aclnnScatterPaKvCache, const aclTensor* key, const aclTensor* key_cache, const aclTensor* slots, const aclTensor* value,
      const aclTensor* value_cache, const aclTensor* compress_lens, const aclTensor*, const aclTensor*, const char* cache_mode,
      const char*, const aclIntArray*, const aclIntArray*) {
  if (compress_lens || (cache_mode && std::string(cache_mode) == "PA_NZ")) return REFUSE("only the plain cache layout is emulated");
  return PLAN([k = view(key), kc = view(key_cache), s = view(slots), v = view(value), vc = view(value_cache)] {
    scatter_pages(k, kc, s);
    scatter_pages(v, vc, s);
  });
}
