// LSTM and GRU over whole sequences, forward and backward, with layers and directions.
#include "kernel.h"

using namespace emu;

namespace {

using Array = Values<double>;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

struct Sizes {
  int64_t steps, batch, in, hidden;
  int64_t rows() const { return steps * batch; }
  int64_t states() const { return batch * hidden; }
};

// What a cell saves for its gradient, [steps, batch, hidden] each, in the order of the operator's lists.
using Saved = std::vector<Array>;

// One element of one step. `a` and `b` are its gates from the input and from the last hidden state, biases included;
// `h` and `c` are the states before the step and, afterwards, behind it.
struct Lstm {
  static constexpr int kGates = 4, kSaved = 7;
  enum { kI, kJ, kF, kO, kH, kC, kTanh };
  static void forward(const double* a, const double* b, double& h, double& c, double* saved) {
    const double i = sigmoid(a[0] + b[0]), f = sigmoid(a[1] + b[1]), j = std::tanh(a[2] + b[2]), o = sigmoid(a[3] + b[3]);
    c = f * c + i * j;
    h = o * std::tanh(c);
    const double all[] = {i, j, f, o, h, c, std::tanh(c)};
    std::copy(all, all + kSaved, saved);
  }
  // Gradients of the gates into `a` and `b`; dh and dc become those of the states before, as far as the gates are not
  // their way.
  static void backward(const double* s, double, double c, double& dh, double& dc, double* a, double* b) {
    const double through = dc + dh * s[kO] * (1 - s[kTanh] * s[kTanh]);
    a[0] = through * s[kJ] * s[kI] * (1 - s[kI]);
    a[1] = through * c * s[kF] * (1 - s[kF]);
    a[2] = through * s[kI] * (1 - s[kJ] * s[kJ]);
    a[3] = dh * s[kTanh] * s[kO] * (1 - s[kO]);
    std::copy(a, a + kGates, b);
    dc = through * s[kF];
    dh = 0;
  }
};

struct Gru {
  static constexpr int kGates = 3, kSaved = 5;
  enum { kR, kZ, kN, kHidden, kH };
  static void forward(const double* a, const double* b, double& h, double&, double* saved) {
    const double r = sigmoid(a[0] + b[0]), z = sigmoid(a[1] + b[1]), n = std::tanh(a[2] + r * b[2]);
    h = (1 - z) * n + z * h;
    const double all[] = {r, z, n, b[2], h};
    std::copy(all, all + kSaved, saved);
  }
  static void backward(const double* s, double h, double, double& dh, double&, double* a, double* b) {
    const double dn = dh * (1 - s[kZ]) * (1 - s[kN] * s[kN]);
    a[0] = b[0] = dn * s[kHidden] * s[kR] * (1 - s[kR]);
    a[1] = b[1] = dh * (h - s[kN]) * s[kZ] * (1 - s[kZ]);
    a[2] = dn;
    b[2] = dn * s[kR];
    dh *= s[kZ];
  }
};

// out[rows, n] = x[rows, m] w[n, m]^T + bias[n]
Array affine(const Array& x, const Array& w, const Array& bias, int64_t rows, int64_t m, int64_t n) {
  Array out(rows * n);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < n; ++k) {
      double total = bias.empty() ? 0 : bias[k];
      for (int64_t i = 0; i < m; ++i) total += x[r * m + i] * w[k * m + i];
      out[r * n + k] = total;
    }
  return out;
}

// Weights of one layer in one direction, or their gradients.
struct Weights {
  Array from_input, from_hidden, input_bias, hidden_bias;
};

// One layer in one direction.
template <class Cell>
struct Layer {
  Sizes s;
  Weights w;
  bool reverse;

  int64_t gates() const { return Cell::kGates * s.hidden; }
  int64_t time(int64_t step) const { return reverse ? s.steps - 1 - step : step; }

  // Calls f(place in [steps, batch, hidden], place in [batch, hidden], the gates' places as base and stride).
  template <class F>
  void each_unit(int64_t t, F f) const {
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t k = 0; k < s.hidden; ++k) f((t * s.batch + b) * s.hidden + k, b * s.hidden + k, b * gates() + k);
  }

  void forward(const Array& x, Array& h, Array& c, Saved& saved) const {
    const Array a = affine(x, w.from_input, w.input_bias, s.rows(), s.in, gates());
    saved.assign(Cell::kSaved, Array(s.rows() * s.hidden));
    for (int64_t step = 0; step < s.steps; ++step) {
      const int64_t t = time(step);
      const Array b = affine(h, w.from_hidden, w.hidden_bias, s.batch, s.hidden, gates());
      each_unit(t, [&](int64_t at, int64_t unit, int64_t gate) {
        double from_input[Cell::kGates], from_hidden[Cell::kGates], kept[Cell::kSaved];
        for (int g = 0; g < Cell::kGates; ++g) {
          from_input[g] = a[t * s.batch * gates() + gate + g * s.hidden];
          from_hidden[g] = b[gate + g * s.hidden];
        }
        Cell::forward(from_input, from_hidden, h[unit], c[unit], kept);
        for (int i = 0; i < Cell::kSaved; ++i) saved[i][at] = kept[i];
      });
    }
  }

  // The state before step `t`: that of the step before it, or the initial one.
  static double before(const Array& states, const Array& initial, int64_t at, int64_t unit, int64_t step, int64_t back) {
    return step ? states[at - back] : initial[unit];
  }

  // dh and dc come as gradients of the last states and go as those of the first; dx is added to.
  void backward(const Array& x, const Array& h0, const Array& c0, const Saved& saved, const Array& dy, Array& dh, Array& dc,
                Array& dx, Weights& dw) const {
    const int64_t back = (reverse ? -1 : 1) * s.states();
    const Array& hidden = saved[Cell::kH];
    for (int64_t step = s.steps - 1; step >= 0; --step) {
      const int64_t t = time(step);
      Array a(s.batch * gates()), b(s.batch * gates()), previous(s.states());
      each_unit(t, [&](int64_t at, int64_t unit, int64_t gate) {
        double kept[Cell::kSaved], from_input[Cell::kGates], from_hidden[Cell::kGates];
        for (int i = 0; i < Cell::kSaved; ++i) kept[i] = saved[i][at];
        previous[unit] = before(hidden, h0, at, unit, step, back);
        double c = 0;
        if constexpr (Cell::kSaved > Gru::kSaved) c = before(saved[Lstm::kC], c0, at, unit, step, back);
        dh[unit] += dy[at];
        Cell::backward(kept, previous[unit], c, dh[unit], dc[unit], from_input, from_hidden);
        for (int g = 0; g < Cell::kGates; ++g) {
          a[gate + g * s.hidden] = from_input[g];
          b[gate + g * s.hidden] = from_hidden[g];
        }
      });
      back_through(a, x.span(t * s.batch * s.in, s.batch * s.in), s.in, w.from_input, dx.span(t * s.batch * s.in, s.batch * s.in),
                   dw.from_input, dw.input_bias);
      back_through(b, previous.span(0, s.states()), s.hidden, w.from_hidden, dh.span(0, s.states()), dw.from_hidden,
                   dw.hidden_bias);
    }
  }

  // The gradients of affine(): to what went in (added), to the weight and to the bias.
  void back_through(const Array& grad, const double* x, int64_t size, const Array& weight, double* dx, Array& dweight,
                    Array& dbias) const {
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t k = 0; k < gates(); ++k) {
        const double g = grad[b * gates() + k];
        if (!dbias.empty()) dbias[k] += g;
        for (int64_t i = 0; i < size; ++i) {
          dx[b * size + i] += g * weight[k * size + i];
          dweight[k * size + i] += g * x[b * size + i];
        }
      }
  }
};

// A whole operator's arguments. Layers and directions are numbered layer * directions + direction.
struct Network {
  View input;
  std::vector<View> parameters, states;  // states: hidden, and cell of an LSTM, [layers * directions, batch, hidden]
  bool biases, bidirectional, batch_first;
  int64_t layers;
  int gates;

  int64_t directions() const { return bidirectional ? 2 : 1; }
  int64_t count() const { return layers * directions(); }
  int64_t per_layer() const { return biases ? 4 : 2; }
  View time_first(const View& view) const { return batch_first && view.defined() ? view.permute({1, 0, 2}) : view; }
  const View& parameter(int64_t index, int which) const { return parameters[index * per_layer() + which]; }
  Sizes sizes(int64_t layer) const {
    const View x = time_first(input);
    const int64_t hidden = states[0].size(2);
    return {x.size(0), x.size(1), layer ? hidden * directions() : x.size(2), hidden};
  }

  void check() const {
    if (static_cast<int64_t>(parameters.size()) != count() * per_layer())
      reject(std::to_string(parameters.size()) + " parameters for " + std::to_string(count()) + " layers and directions");
    for (int64_t index = 0; index < count(); ++index) {
      const Sizes s = sizes(index / directions());
      const Dims wanted[] = {{gates * s.hidden, s.in}, {gates * s.hidden, s.hidden}, {gates * s.hidden}, {gates * s.hidden}};
      for (int k = 0; k < per_layer(); ++k)
        if (parameter(index, k).shape != wanted[k])
          reject("a parameter of shape " + text(parameter(index, k).shape) + " where " + text(wanted[k]) + " is needed");
      for (const View& state : states)
        if (state.shape != Dims{count(), s.batch, s.hidden}) reject("initial states of shape " + text(state.shape));
    }
  }

  template <class Cell>
  Layer<Cell> layer(int64_t index) const {
    Layer<Cell> result{sizes(index / directions()), {}, index % directions() == 1};
    result.w.from_input = dense<double>(parameter(index, 0));
    result.w.from_hidden = dense<double>(parameter(index, 1));
    if (biases) result.w.input_bias = dense<double>(parameter(index, 2));
    if (biases) result.w.hidden_bias = dense<double>(parameter(index, 3));
    return result;
  }
  Array state(int which, int64_t index) const {
    const Sizes s = sizes(0);
    return which < static_cast<int>(states.size()) ? dense<double>(states[which].select(0, index)) : Array(s.states());
  }
};

// The hidden states of both directions of a layer side by side, which is what the next one gets, or the reverse.
void join(Array& joined, Array& part, int64_t rows, int64_t size, int64_t directions, int64_t direction, bool split) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < size; ++k) {
      double& whole = joined[(r * directions + direction) * size + k];
      double& own = part[r * size + k];
      if (split) own = whole;
      else whole = own;
    }
}

template <class Cell>
void run(const Network& net, const View& out, const std::vector<View>& last_states, const std::vector<std::vector<View>>& lists) {
  net.check();
  const int64_t directions = net.directions();
  Array x = dense<double>(net.time_first(net.input));
  for (int64_t l = 0; l < net.layers; ++l) {
    const Sizes s = net.sizes(l);
    Array y(s.rows() * s.hidden * directions);
    for (int64_t d = 0; d < directions; ++d) {
      const int64_t index = l * directions + d;
      Array h = net.state(0, index), c = net.state(1, index);
      Saved saved;
      net.layer<Cell>(index).forward(x, h, c, saved);
      join(y, saved[Cell::kH], s.rows(), s.hidden, directions, d, false);
      for (size_t k = 0; k < lists.size(); ++k)
        if (index < static_cast<int64_t>(lists[k].size()) && lists[k][index].dims() == 3) assign(lists[k][index], saved[k]);
      assign(last_states[0].select(0, index), h);
      if (last_states.size() > 1) assign(last_states[1].select(0, index), c);
    }
    x = std::move(y);
  }
  assign(net.time_first(out), x);
}

struct Gradients {
  View output;                                        // may be absent, as may the states'
  std::vector<View> last_states;
  View input;
  std::vector<View> states, parameters;
};

template <class Cell>
void run_backward(const Network& net, const Gradients& grads, const std::vector<std::vector<View>>& lists) {
  net.check();
  const int64_t directions = net.directions();
  auto saved = [&](size_t list, int64_t index) { return dense<double>(lists[list][index]); };
  auto incoming = [&](size_t which, int64_t index) {
    const bool given = which < grads.last_states.size() && grads.last_states[which].has_memory();
    return given ? dense<double>(grads.last_states[which].select(0, index)) : Array(net.sizes(0).states());
  };
  const Sizes top = net.sizes(net.layers - 1);
  const int64_t width = top.hidden * directions;
  Array dy = grads.output.has_memory() ? dense<double>(net.time_first(grads.output)) : Array(top.rows() * width);
  for (int64_t l = net.layers - 1; l >= 0; --l) {
    const Sizes s = net.sizes(l);
    Array x(s.rows() * s.in), dx(s.rows() * s.in);
    if (l == 0) x = dense<double>(net.time_first(net.input));
    for (int64_t d = 0; l > 0 && d < directions; ++d) {
      Array below = saved(Cell::kH, (l - 1) * directions + d);
      join(x, below, s.rows(), s.hidden, directions, d, false);
    }
    for (int64_t d = 0; d < directions; ++d) {
      const int64_t index = l * directions + d;
      const Layer<Cell> layer = net.layer<Cell>(index);
      Saved kept;
      for (int k = 0; k < Cell::kSaved; ++k) kept.push_back(saved(k, index));
      Array part(s.rows() * s.hidden), dh = incoming(0, index), dc = incoming(1, index);
      join(dy, part, s.rows(), s.hidden, directions, d, true);
      Weights dw{Array(layer.w.from_input.size()), Array(layer.w.from_hidden.size()), Array(layer.w.input_bias.size()),
                 Array(layer.w.hidden_bias.size())};
      layer.backward(x, net.state(0, index), net.state(1, index), kept, part, dh, dc, dx, dw);
      assign(grads.states[0].select(0, index), dh);
      if (grads.states.size() > 1) assign(grads.states[1].select(0, index), dc);
      const Array* all[] = {&dw.from_input, &dw.from_hidden, &dw.input_bias, &dw.hidden_bias};
      for (int64_t k = 0; k < net.per_layer(); ++k) assign(grads.parameters.at(index * net.per_layer() + k), *all[k]);
    }
    dy = std::move(dx);
  }
  assign(net.time_first(grads.input), dy);
}

// Why these arguments are not emulated, empty if they are.
std::string unsupported(const aclTensor* batch_sizes, double dropout, bool train, int64_t layers) {
  if (batch_sizes && batch_sizes->count()) return "packed sequences are not emulated";
  if (dropout > 0 && train && layers > 1) return "dropout between layers is not emulated";
  return "";
}

}  // namespace

ACLNN(aclnnLSTM, const aclTensor* input, const aclTensorList* parameters, const aclTensorList* states,
      const aclTensor* batch_sizes, bool biases, int64_t layers, double dropout, bool train, bool bidirectional,
      bool batch_first, const aclTensor* out, const aclTensor* last_hidden, const aclTensor* last_cell, const aclTensorList* i,
      const aclTensorList* j, const aclTensorList* f, const aclTensorList* o, const aclTensorList* h, const aclTensorList* c,
      const aclTensorList* tanhc) {
  std::string why = unsupported(batch_sizes, dropout, train, layers);
  if (layers > 1 || bidirectional || !biases) why = "no test reaches other forms than one layer in one direction with biases";
  if (!why.empty()) return REFUSE(why);
  return PLAN([net = Network{view(input), views(parameters), views(states), biases, bidirectional, batch_first, layers, Lstm::kGates},
               y = view(out), last = std::vector<View>{view(last_hidden), view(last_cell)},
               lists = std::vector<std::vector<View>>{views(i), views(j), views(f), views(o), views(h), views(c), views(tanhc)}] {
    run<Lstm>(net, y, last, lists);
  });
}
ACLNN(aclnnLstmBackward, const aclTensor* input, const aclTensorList* states, const aclTensorList* parameters,
      const aclTensor* grad_out, const aclTensor* grad_hidden, const aclTensor* grad_cell, const aclTensorList* i,
      const aclTensorList* j, const aclTensorList* f, const aclTensorList* o, const aclTensorList* h, const aclTensorList* c,
      const aclTensorList* tanhc, const aclTensor* batch_sizes, bool biases, int64_t layers, double dropout, bool train,
      bool bidirectional, bool batch_first, const void*, const aclTensor* grad_input, const aclTensor* grad_first_hidden,
      const aclTensor* grad_first_cell, const aclTensorList* grad_parameters) {
  const std::string why = unsupported(batch_sizes, dropout, train, layers);
  if (!why.empty()) return REFUSE(why);
  return PLAN([net = Network{view(input), views(parameters), views(states), biases, bidirectional, batch_first, layers, Lstm::kGates},
               grads = Gradients{view(grad_out), {view(grad_hidden), view(grad_cell)}, view(grad_input),
                                 {view(grad_first_hidden), view(grad_first_cell)}, views(grad_parameters)},
               lists = std::vector<std::vector<View>>{views(i), views(j), views(f), views(o), views(h), views(c), views(tanhc)}] {
    run_backward<Lstm>(net, grads, lists);
  });
}

ACLNN(aclnnGRU, const aclTensor* input, const aclTensorList* parameters, const aclTensor* state, const aclTensor* batch_sizes,
      bool biases, int64_t layers, double dropout, bool train, bool bidirectional, bool batch_first, const aclTensor* out,
      const aclTensor* last_hidden, const aclTensorList* r, const aclTensorList* z, const aclTensorList* n,
      const aclTensorList* hidden, const aclTensorList* h) {
  const std::string why = unsupported(batch_sizes, dropout, train, layers);
  if (!why.empty()) return REFUSE(why);
  return PLAN([net = Network{view(input), views(parameters), {view(state)}, biases, bidirectional, batch_first, layers, Gru::kGates},
               y = view(out), last = std::vector<View>{view(last_hidden)},
               lists = std::vector<std::vector<View>>{views(r), views(z), views(n), views(hidden), views(h)}] {
    run<Gru>(net, y, last, lists);
  });
}
ACLNN(aclnnGRUBackward, const aclTensor* input, const aclTensorList* parameters, const aclTensor* state,
      const aclTensor* grad_out, const aclTensor* grad_hidden, const aclTensorList* r, const aclTensorList* z,
      const aclTensorList* n, const aclTensorList* hidden, const aclTensorList* h, const aclTensor* batch_sizes, bool biases,
      int64_t layers, bool bidirectional, bool batch_first, const aclTensor* grad_input, const aclTensor* grad_first_hidden,
      const aclTensorList* grad_parameters) {
  const std::string why = unsupported(batch_sizes, 0, true, layers);
  if (!why.empty()) return REFUSE(why);
  return PLAN([net = Network{view(input), views(parameters), {view(state)}, biases, bidirectional, batch_first, layers, Gru::kGates},
               grads = Gradients{view(grad_out), {view(grad_hidden)}, view(grad_input), {view(grad_first_hidden)}, views(grad_parameters)},
               lists = std::vector<std::vector<View>>{views(r), views(z), views(n), views(hidden), views(h)}] {
    run_backward<Gru>(net, grads, lists);
  });
}
