// Matrix products, with batch dimensions broadcast and an optional addend.
#include "kernel.h"

using namespace emu;

namespace {

// out[m, n] += a[m, k] * b[k, n] for dense matrices; the inner loop runs over n, so it vectorizes.
template <class C>
void multiply_add(const C* a, const C* b, C* out, int64_t m, int64_t k, int64_t n) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t p = 0; p < k; ++p) {
      const C factor = a[i * k + p];
      const C* row = b + p * n;
      C* to = out + i * n;
      for (int64_t j = 0; j < n; ++j) to[j] += factor * row[j];
    }
}

// out = beta * addend + alpha * (a @ b). Vectors become matrices of one row or one column.
void matmul(View out, View a, View b, double alpha = 1, double beta = 0, View addend = {}) {
  const bool row = a.dims() == 1, column = b.dims() == 1;
  const bool add = addend.defined() && beta != 0;  // as in BLAS, beta 0 ignores even a NaN
  if (add) addend = addend.expand(out.shape);
  if (row) a = a.unsqueeze(0);
  if (column) b = b.unsqueeze(1);
  if (row) out = out.unsqueeze(column ? out.dims() : out.dims() - 1);
  if (column) out = out.unsqueeze(out.dims());
  const int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1);
  if (b.size(-2) != k || out.size(-2) != m || out.size(-1) != n)
    reject("matrices of shapes " + text(a.shape) + " and " + text(b.shape) + " have no product of shape " + text(out.shape));
  const Dims batch(out.shape.begin(), out.shape.end() - 2);
  auto with_batch = [&](const View& view, int64_t rows, int64_t columns) {
    Dims shape = batch;
    shape.push_back(rows);
    shape.push_back(columns);
    return view.expand(shape);
  };
  compute({&out, &a, &b}, [&](auto zero) {
    using C = decltype(zero);
    const View all_left = with_batch(a, m, k), all_right = with_batch(b, k, n);
    const auto left = dense<C>(all_left), right = dense<C>(all_right);
    Values<C> result(out.count());
    for (int64_t i = 0; i < product(batch); ++i)
      multiply_add(left.span(i * m * k, m * k), right.span(i * k * n, k * n), result.span(i * m * n, m * n), m, k, n);
    const C factor = static_cast<C>(alpha), keep = static_cast<C>(beta);
    const auto extra = add ? dense<C>(addend) : Values<C>();  // row-major, like the result
    for (size_t i = 0; i < result.size(); ++i) result[i] = factor * result[i] + (add ? keep * extra[i] : C(0));
    assign(out, result);
  });
}

}  // namespace

#define MATMUL(name)                                                                                      \
  ACLNN(name, const aclTensor* self, const aclTensor* other, const aclTensor* out, int8_t) {              \
    return PLAN([a = view(self), b = view(other), o = view(out)] { matmul(o, a, b); });                   \
  }
MATMUL(aclnnMm)
MATMUL(aclnnMatmul)
MATMUL(aclnnBatchMatMul)
MATMUL(aclnnMv)

ACLNN(aclnnDot, const aclTensor* self, const aclTensor* other, const aclTensor* out) {
  return PLAN([a = view(self), b = view(other), o = view(out)] { matmul(o, a, b); });
}

#define MATMUL_ADD(name)                                                                                           \
  ACLNN(name, const aclTensor* self, const aclTensor* first, const aclTensor* second, const aclScalar* beta,       \
        const aclScalar* alpha, const aclTensor* out, int8_t) {                                                    \
    return PLAN([c = view(self), a = view(first), b = view(second), x = beta->number(), y = alpha->number(),       \
                 o = view(out)] { matmul(o, a, b, y, x, c); });                                                    \
  }
MATMUL_ADD(aclnnAddmm)
MATMUL_ADD(aclnnBaddbmm)

ACLNN(aclnnInplaceAddmm, const aclTensor* self, const aclTensor* first, const aclTensor* second, const aclScalar* beta,
      const aclScalar* alpha, int8_t) {
  return PLAN([c = view(self), a = view(first), b = view(second), x = beta->number(), y = alpha->number()] {
    matmul(c, a, b, y, x, c);
  });
}
// Here alpha comes before beta.
ACLNN(aclnnAddmv, const aclTensor* self, const aclTensor* matrix, const aclTensor* vector, const aclScalar* alpha,
      const aclScalar* beta, const aclTensor* out, int8_t) {
  return PLAN([c = view(self), a = view(matrix), b = view(vector), x = beta->number(), y = alpha->number(), o = view(out)] {
    matmul(o, a, b, y, x, c);
  });
}
ACLNN(aclnnAddbmm, const aclTensor* self, const aclTensor* first, const aclTensor* second, const aclScalar* beta,
      const aclScalar* alpha, const aclTensor* out, int8_t) {
  return PLAN([c = view(self), a = view(first), b = view(second), x = beta->number(), y = alpha->number(), o = view(out)] {
    matmul(o, a.select(0, 0), b.select(0, 0), y, x, c);
    for (int64_t i = 1; i < a.shape[0]; ++i) matmul(o, a.select(0, i), b.select(0, i), y, 1, o);
  });
}
ACLNN(aclnnAddr, const aclTensor* self, const aclTensor* first, const aclTensor* second, const aclScalar* beta,
      const aclScalar* alpha, const aclTensor* out) {
  return PLAN([c = view(self), a = view(first), b = view(second), x = beta->number(), y = alpha->number(), o = view(out)] {
    matmul(o, a.unsqueeze(1), b.unsqueeze(0), y, x, c);
  });
}
