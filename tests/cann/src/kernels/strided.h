// Reading and writing strided tensors of any dtype.
//
// Kernels compute in one of three types, chosen from the dtypes at hand: int64_t when all are integers or bool,
// double when one is float64, else float (so float16 and bfloat16 accumulate in float32, as on the device).
// Conversion happens row by row, so a kernel is written once for all dtypes and strides.
#pragma once
#include <algorithm>
#include <array>
#include <functional>
#include <initializer_list>

#include "../emu.h"
#include "../tensor.h"

namespace emu {

// One element, converted. Throws Failure for a dtype without arithmetic.
template <class C>
C read(aclDataType dtype, const char* from);
template <class C>
void write(aclDataType dtype, char* to, C value);
// The only element of a tensor, or its first.
template <class C>
C read(const View& view) { return read<C>(view.dtype, view.first()); }
template <class C>
void write(const View& view, C value) { write<C>(view.dtype, view.first(), value); }

// `count` elements, `stride` elements apart.
template <class C>
void read_row(aclDataType dtype, const char* from, int64_t stride, int64_t count, C* to);
template <class C>
void write_row(aclDataType dtype, char* to, int64_t stride, int64_t count, const C* from);

// True for the dtypes that read and write know.
bool is_supported(aclDataType dtype);

// Calls f with a zero of the type to compute in.
template <class F>
void compute(std::initializer_list<const View*> views, F f) {
  bool floating = false, wide = false;
  for (const View* view : views) {
    floating |= is_floating(view->dtype);
    wide |= view->dtype == ACL_DOUBLE;
  }
  if (wide) f(double{});
  else if (floating) f(float{});
  else f(int64_t{});
}
// The same for operators without an integer form: integers are read as float.
template <class F>
void compute_floating(std::initializer_list<const View*> views, F f) {
  for (const View* view : views)
    if (view->dtype == ACL_DOUBLE) return f(double{});
  f(float{});
}

// Walks views of one shape together, in row-major order, one row at a time. Dimensions that are laid out
// one after the other in all views are merged, so that rows are long.
class Rows {
 public:
  static constexpr int kMaxViews = 6;
  Rows(const Dims& shape, const View* views, int count);
  bool done() const { return done_; }
  void next();
  int64_t length() const { return shape_.back(); }
  char* data(int view) const { return data_[view]; }
  int64_t stride(int view) const { return strides_[view].back(); }  // in elements

 private:
  Dims shape_, index_;
  std::array<Dims, kMaxViews> strides_;
  std::array<char*, kMaxViews> data_{};
  std::array<int64_t, kMaxViews> item_{};
  int views_ = 0;
  bool done_ = false;
};

// Fills buffers[0] from buffers[1...], `count` elements each.
template <class C>
using Chunk = std::function<void(C* const* buffers, int64_t count)>;

// Runs `chunk` over all elements of `out` and of the inputs, which are broadcast to its shape.
// Kept out of line: it would otherwise be compiled anew for every operator.
template <class C>
void run_chunks(const View& out, std::initializer_list<const View*> inputs, const Chunk<C>& chunk);

// out[i] = f(in[i]...) computed in C.
template <class C, class F, class... In>
void map_as(const View& out, F f, const In&... in) {
  run_chunks<C>(out, {&in...}, [&]<size_t... I>(std::index_sequence<I...>) {
    return [&f](C* const* buffers, int64_t count) {
      for (int64_t i = 0; i < count; ++i) buffers[0][i] = static_cast<C>(f(buffers[I + 1][i]...));
    };
  }(std::index_sequence_for<In...>{}));
}

// The same in the type that fits the dtypes; f is generic.
template <class F, class... In>
void map(const View& out, F f, const In&... in) {
  compute({&out, &in...}, [&](auto zero) { map_as<decltype(zero)>(out, f, in...); });
}
template <class F, class... In>
void map_floating(const View& out, F f, const In&... in) {
  compute_floating({&out, &in...}, [&](auto zero) { map_as<decltype(zero)>(out, f, in...); });
}

[[noreturn]] void outside(int64_t start, int64_t length, size_t size);

// Elements in row-major order. What lies outside of them is a failure of the operator, not of the process.
template <class C>
class Values : public std::vector<C> {
 public:
  using std::vector<C>::vector;
  C& operator[](int64_t i) { return *span(i, 1); }
  const C& operator[](int64_t i) const { return *span(i, 1); }
  // `length` elements from the start-th on.
  C* span(int64_t start, int64_t length) {
    check(start, length);
    return this->data() + start;
  }
  const C* span(int64_t start, int64_t length) const {
    check(start, length);
    return this->data() + start;
  }

 private:
  void check(int64_t start, int64_t length) const {
    if (start < 0 || start + length > static_cast<int64_t>(this->size())) outside(start, length, this->size());
  }
};
template <class C>
Values<C> dense(const View& view) {
  need_data();
  Values<C> values(view.count());
  C* to = values.data();
  for (Rows rows(view.shape, &view, 1); !rows.done(); rows.next(), to += rows.length())
    read_row<C>(view.dtype, rows.data(0), rows.stride(0), rows.length(), to);
  return values;
}
template <class C>
void assign(const View& view, const std::vector<C>& values) {
  need_data();
  if (static_cast<int64_t>(values.size()) != view.count())
    reject(std::to_string(values.size()) + " results do not fill a tensor of shape " + text(view.shape));
  const C* from = values.data();
  for (Rows rows(view.shape, &view, 1); !rows.done(); rows.next(), from += rows.length())
    write_row<C>(view.dtype, rows.data(0), rows.stride(0), rows.length(), from);
}

// Converts and copies; the source is broadcast. Bytes are kept when the dtypes agree.
void copy(const View& to, const View& from);
void fill(const View& to, double value);

// Calls f with every index of a shape, in row-major order.
template <class F>
void each_index(const Dims& shape, F f) {
  need_data();
  if (product(shape) == 0) return;
  Dims index(shape.size(), 0);
  for (;;) {
    f(index);
    int d = static_cast<int>(shape.size()) - 1;
    for (; d >= 0; --d) {
      if (++index[d] < shape[d]) break;
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

}  // namespace emu
