// Kernels of the CPU for ops that only a GPU has: torch asks this device for the steps of LSTM and GRU as one op.
//
// Nothing asks the CPU for them. As its kernels they are computed for the device like any other.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

namespace standin {

namespace {

using at::Tensor;

Tensor with_bias(const Tensor& gates, const std::optional<Tensor>& bias) {
  return bias.has_value() && bias->defined() ? gates + *bias : gates;
}

Tensor or_zeros(const std::optional<Tensor>& gradient, const Tensor& like) {
  return gradient.has_value() && gradient->defined() ? *gradient : at::zeros_like(like);
}

Tensor through_sigmoid(const Tensor& gradient, const Tensor& result) { return gradient * (1 - result) * result; }
Tensor through_tanh(const Tensor& gradient, const Tensor& result) { return gradient * (1 - result * result); }

// Returns the new state, the new cell, and what backward needs: the gates.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             const std::optional<Tensor>& input_bias,
                                             const std::optional<Tensor>& hidden_bias) {
  const Tensor sums = with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias);
  const std::vector<Tensor> gates = sums.chunk(4, 1);
  const Tensor in = at::sigmoid(gates[0]), forget = at::sigmoid(gates[1]), cell = at::tanh(gates[2]);
  const Tensor out = at::sigmoid(gates[3]);
  const Tensor cy = forget * cx + in * cell;
  return {out * at::tanh(cy), cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const std::optional<Tensor>& grad_hy,
                                                      const std::optional<Tensor>& grad_cy, const Tensor& cx,
                                                      const Tensor& cy, const Tensor& workspace, bool has_bias) {
  const std::vector<Tensor> gates = workspace.chunk(4, 1);
  const Tensor &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const Tensor of_state = or_zeros(grad_hy, cy), squashed = at::tanh(cy);
  const Tensor of_cell = through_tanh(of_state * out, squashed) + or_zeros(grad_cy, cy);
  const Tensor of_gates =
      at::cat({through_sigmoid(of_cell * cell, in), through_sigmoid(of_cell * cx, forget),
               through_tanh(of_cell * in, cell), through_sigmoid(of_state * squashed, out)},
              1);
  return {of_gates, of_cell * forget, has_bias ? of_gates.sum(0) : Tensor()};
}

// Returns the new state and what backward needs.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const std::optional<Tensor>& input_bias, const std::optional<Tensor>& hidden_bias) {
  const std::vector<Tensor> of_input = with_bias(input_gates, input_bias).chunk(3, 1);
  const std::vector<Tensor> of_state = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor reset = at::sigmoid(of_input[0] + of_state[0]), keep = at::sigmoid(of_input[1] + of_state[1]);
  const Tensor fresh = at::tanh(of_input[2] + reset * of_state[2]);
  return {fresh + keep * (hx - fresh), at::cat({reset, keep, fresh, hx, of_state[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace,
                                                                     bool has_bias) {
  const std::vector<Tensor> kept = workspace.chunk(5, 1);
  const Tensor &reset = kept[0], &keep = kept[1], &fresh = kept[2], &hx = kept[3], &of_state = kept[4];
  const Tensor of_keep = through_sigmoid(grad_hy * (hx - fresh), keep);
  const Tensor of_fresh = through_tanh(grad_hy * (1 - keep), fresh);
  const Tensor of_reset = through_sigmoid(of_fresh * of_state, reset);
  const Tensor input_gates = at::cat({of_reset, of_keep, of_fresh}, 1);
  const Tensor hidden_gates = at::cat({of_reset, of_keep, of_fresh * reset}, 1);
  if (!has_bias) return {input_gates, hidden_gates, grad_hy * keep, Tensor(), Tensor()};
  return {input_gates, hidden_gates, grad_hy * keep, input_gates.sum(0), hidden_gates.sum(0)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

}  // namespace standin
