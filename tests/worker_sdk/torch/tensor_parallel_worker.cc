// SPDX-License-Identifier: Apache-2.0
// One rank of tensor_parallel_test.py: the parallel layers against torch::nn's.
//
//   tensor_parallel_worker MODE [ARGUMENT]
//
// exits with 0 if all of its checks hold. It is one long program, because each program with
// LibTorch costs as much to compile as all of this.
#include <torch/torch.h>

#include <cmath>
#include <iostream>

#include "common/text.h"
#include "tests/worker_sdk/torch/worker_program.h"
#include "worker_sdk/core/mesh.h"
#include "worker_sdk/torch/autocast.h"
#include "worker_sdk/torch/distributed_data_parallel.h"
#include "worker_sdk/torch/flat_optimizer.h"
#include "worker_sdk/torch/parallel/parallel_conv.h"
#include "worker_sdk/torch/parallel/parallel_linear.h"
#include "worker_sdk/torch/parallel/sharded_gradients.h"
#include "worker_sdk/torch/parallel/tensor_parallel.h"

using namespace ddprun;
using namespace ddprun::testing;

namespace tensor_parallel_worker {
namespace {

constexpr std::int64_t kIn = 12, kHidden = 16, kOut = 8;

double tolerance_of(const torch::Tensor& tensor) {
  if (tensor.scalar_type() == torch::kDouble) return 1e-12;
  return tensor.scalar_type() == torch::kFloat ? 1e-5 : 4e-2;
}

void expect_close(const torch::Tensor& ours, const torch::Tensor& theirs, const std::string& what) {
  expect(ours.defined() && theirs.defined() && ours.sizes() == theirs.sizes(), what + ": a shape");
  if (ours.numel() == 0) return;
  const torch::Tensor wanted = theirs.to(torch::kDouble);
  const double scale = std::max(1.0, wanted.abs().max().item<double>());
  const double error = (ours.to(torch::kDouble) - wanted).abs().max().item<double>();
  expect(error <= tolerance_of(ours) * scale, concat(what, ": off by ", error, " of ", scale));
}

void expect_equal(const torch::Tensor& ours, const torch::Tensor& theirs, const std::string& what) {
  expect(torch::equal(ours, theirs), what + ": not equal bit for bit");
}

torch::Tensor own(const torch::Tensor& whole, std::int64_t dim, const Communicator& group) {
  return whole.chunk(group.size(), dim)[static_cast<std::size_t>(group.rank())];
}

struct Shape {
  bool bias = true, gather_output = false, sequence = false;
};

std::string to_text(const Shape& shape, at::IntArrayRef sizes, torch::Dtype dtype) {
  return concat("bias ", shape.bias, ", gather ", shape.gather_output, ", sequence ",
                shape.sequence, ", input of ", c10::str(sizes), " ", c10::toString(dtype));
}

// Two layers with a relu between them: a group's, or torch::nn's.
struct PairImpl : torch::nn::Module {
  PairImpl(const Shape& shape, Communicator& group) {
    column = register_module(
        "fc1", ColumnParallelLinear(ColumnParallelOptions{.in_features = kIn,
                                                          .out_features = kHidden,
                                                          .bias = shape.bias,
                                                          .gather_output = shape.gather_output,
                                                          .sequence_parallel = shape.sequence},
                                    group));
    row = register_module(
        "fc2", RowParallelLinear(RowParallelOptions{.in_features = kHidden,
                                                    .out_features = kOut,
                                                    .bias = shape.bias,
                                                    .input_is_parallel = !shape.gather_output,
                                                    .sequence_parallel = shape.sequence},
                                 group));
  }
  torch::Tensor forward(const torch::Tensor& x) { return row(column(x).relu()); }
  ColumnParallelLinear column = nullptr;
  RowParallelLinear row = nullptr;
};
TORCH_MODULE(Pair);

struct WholePairImpl : torch::nn::Module {
  explicit WholePairImpl(bool bias) {
    fc1 = register_module("fc1",
                          torch::nn::Linear(torch::nn::LinearOptions(kIn, kHidden).bias(bias)));
    fc2 = register_module("fc2",
                          torch::nn::Linear(torch::nn::LinearOptions(kHidden, kOut).bias(bias)));
  }
  torch::Tensor forward(const torch::Tensor& x) { return fc2(fc1(x).relu()); }
  torch::nn::Linear fc1 = nullptr, fc2 = nullptr;
};
TORCH_MODULE(WholePair);

// The numbers are the same in every rank's process.
torch::Tensor draw(std::uint64_t seed, at::IntArrayRef sizes, torch::Dtype dtype) {
  torch::manual_seed(seed);
  return torch::randn(sizes, torch::kDouble).to(dtype);
}

void check_pair(const Shape& shape, at::IntArrayRef sizes, torch::Dtype dtype,
                Communicator& group) {
  const std::string what = to_text(shape, sizes, dtype) + ": ";
  torch::manual_seed(7);
  Pair ours(shape, group);
  torch::manual_seed(7);
  WholePair theirs(shape.bias);
  expect_equal(ours->column->weight, own(theirs->fc1->weight, 0, group), what + "drawn column");
  expect_equal(ours->row->weight, own(theirs->fc2->weight, 1, group), what + "drawn row");
  ours->to(dtype);
  theirs->to(dtype);
  // Every second column of a larger tensor, which isn't contiguous.
  std::vector<std::int64_t> wide = sizes.vec();
  wide.back() *= 2;
  const torch::Tensor whole = draw(8, wide, dtype).slice(-1, 0, c10::nullopt, 2);
  torch::Tensor x = (shape.sequence ? own(whole, 0, group) : whole).detach().requires_grad_();
  torch::Tensor whole_x = whole.detach().requires_grad_();
  const torch::Tensor y = ours(x), whole_y = theirs(whole_x);
  const torch::Tensor slope = draw(9, whole_y.sizes(), dtype);
  const auto part = [&](const torch::Tensor& t) { return shape.sequence ? own(t, 0, group) : t; };
  expect_close(y, part(whole_y), what + "output");
  (y * part(slope)).sum().backward();
  (whole_y * slope).sum().backward();
  expect_close(x.grad(), part(whole_x.grad()), what + "gradient of the input");
  expect_close(ours->column->weight.grad(), own(theirs->fc1->weight.grad(), 0, group),
               what + "gradient of the column's weight");
  expect_close(ours->row->weight.grad(), own(theirs->fc2->weight.grad(), 1, group),
               what + "gradient of the row's weight");
  if (!shape.bias) return;
  expect_close(ours->column->bias.grad(), own(theirs->fc1->bias.grad(), 0, group),
               what + "gradient of the column's bias");
  expect_close(ours->row->bias.grad(), theirs->fc2->bias.grad(),
               what + "gradient of the row's bias");
}

void check_pairs(Communicator& group) {
  const std::vector<std::vector<std::int64_t>> shapes{
      {kIn}, {5, kIn}, {1, kIn}, {3, 7, kIn}, {0, kIn}};
  for (const torch::Dtype dtype : {torch::kDouble, torch::kFloat, torch::kBFloat16}) {
    for (const bool bias : {true, false}) {
      for (const auto& sizes : shapes) {
        check_pair({.bias = bias}, sizes, dtype, group);
        check_pair({.bias = bias, .gather_output = true}, sizes, dtype, group);
      }
      for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{4, kIn}, {12, 3, kIn}}) {
        check_pair({.bias = bias, .sequence = true}, sizes, dtype, group);
      }
    }
  }
  // This is large enough for each of the communicator's ways.
  check_pair({}, {3000, 3, kIn}, torch::kFloat, group);
  check_pair({.sequence = true}, {3000, 3, kIn}, torch::kFloat, group);
}

// Checks each function along each of its dimensions against its result for the whole.
void check_functions(Communicator& group) {
  const int n = group.size();
  const torch::Tensor whole = draw(1, {4 * n, 3, 2 * n}, torch::kDouble);
  const auto check = [&](const char* name, torch::Tensor input, const torch::Tensor& output,
                         const torch::Tensor& gradient, auto function) {
    input = input.detach().requires_grad_();
    const torch::Tensor result = function(input);
    expect_close(result, output, concat(name, ": forward"));
    result.backward(draw(2, result.sizes(), torch::kDouble));
    expect_close(input.grad(), gradient, concat(name, ": backward"));
  };
  const torch::Tensor slope = draw(2, whole.sizes(), torch::kDouble);
  check("copy_to_region", whole, whole, slope * n,
        [&](const torch::Tensor& x) { return copy_to_region(x, group); });
  check("reduce_from_region", whole * (group.rank() + 1), whole * (n * (n + 1) / 2), slope,
        [&](const torch::Tensor& x) { return reduce_from_region(x, group); });
  for (const std::int64_t dim : {-1, 0, 2}) {
    check("gather_from_region", own(whole, dim, group), whole, own(slope, dim, group),
          [&](const torch::Tensor& x) { return gather_from_region(x, group, dim); });
    const torch::Tensor part = own(whole, dim, group);
    const torch::Tensor of_part = draw(2, part.sizes(), torch::kDouble);
    check("scatter_to_region", whole, part,
          torch::cat(std::vector<torch::Tensor>(static_cast<std::size_t>(n), of_part), dim),
          [&](const torch::Tensor& x) { return scatter_to_region(x, group, dim); });
  }
  check("gather_sequence", own(whole, 0, group), whole, own(slope, 0, group) * n,
        [&](const torch::Tensor& x) { return gather_sequence(x, group); });
  const torch::Tensor of_part = draw(2, own(whole, 0, group).sizes(), torch::kDouble);
  check("reduce_scatter_sequence", whole * (group.rank() + 1),
        own(whole, 0, group) * (n * (n + 1) / 2),
        torch::cat(std::vector<torch::Tensor>(static_cast<std::size_t>(n), of_part)),
        [&](const torch::Tensor& x) { return reduce_scatter_sequence(x, group); });
  torch::manual_seed(3);
  const torch::Tensor dropped = torch::dropout(whole, 0.4, true);
  torch::manual_seed(3);
  expect_equal(region_dropout(own(whole, -1, group), 0.4, true, group), own(dropped, -1, group),
               "region_dropout");
  const torch::Tensor next = torch::rand({1});
  torch::manual_seed(3);
  torch::dropout(whole, 0.4, true);
  expect_equal(next, torch::rand({1}), "the generators stay in step");
  expect_equal(region_dropout(whole, 0.4, false, group), whole, "region_dropout in evaluation");
}

struct ConvNetImpl : torch::nn::Module {
  ConvNetImpl(Communicator& group, bool gather) {
    conv1 = register_module(
        "conv1", ColumnParallelConv2d(torch::nn::Conv2dOptions(2, 8, 3).padding(1), group, gather));
    conv2 = register_module(
        "conv2", RowParallelConv2d(torch::nn::Conv2dOptions(8, 4, 3).stride(2), group, !gather));
  }
  torch::Tensor forward(const torch::Tensor& x) { return conv2(conv1(x).relu()); }
  ColumnParallelConv2d conv1 = nullptr;
  RowParallelConv2d conv2 = nullptr;
};

void check_convolutions(Communicator& group) {
  for (const bool gather : {false, true}) {
    torch::manual_seed(5);
    ConvNetImpl ours(group, gather);
    torch::manual_seed(5);
    torch::nn::Conv2d conv1(torch::nn::Conv2dOptions(2, 8, 3).padding(1));
    torch::nn::Conv2d conv2(torch::nn::Conv2dOptions(8, 4, 3).stride(2));
    ours.to(torch::kDouble);
    conv1->to(torch::kDouble);
    conv2->to(torch::kDouble);
    torch::Tensor x = draw(6, {3, 2, 9, 7}, torch::kDouble).requires_grad_();
    torch::Tensor whole_x = x.detach().requires_grad_();
    const torch::Tensor y = ours.forward(x), whole_y = conv2(conv1(whole_x).relu());
    expect_close(y, whole_y, "output of the convolutions");
    y.square().sum().backward();
    whole_y.square().sum().backward();
    expect_close(x.grad(), whole_x.grad(), "gradient of the images");
    expect_close(ours.conv1->weight.grad(), own(conv1->weight.grad(), 0, group), "conv1's weight");
    expect_close(ours.conv1->bias.grad(), own(conv1->bias.grad(), 0, group), "conv1's bias");
    expect_close(ours.conv2->weight.grad(), own(conv2->weight.grad(), 1, group), "conv2's weight");
    expect_close(ours.conv2->bias.grad(), conv2->bias.grad(), "conv2's bias");
    expect_equal(ours.conv2->full_weight(), conv2->weight, "conv2's whole weight");
  }
}

// A layer norm before the pair. If the pair splits the sequence, the norm works on this rank's
// part.
struct BlockImpl : torch::nn::Module {
  BlockImpl(const Shape& shape, Communicator& group)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kIn})))),
        pair(register_module("pair", Pair(shape, group))) {}
  torch::Tensor forward(const torch::Tensor& x) { return pair(norm(x)); }
  torch::nn::LayerNorm norm;
  Pair pair;
};

struct WholeBlockImpl : torch::nn::Module {
  WholeBlockImpl()
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kIn})))),
        pair(register_module("pair", WholePair(true))) {}
  torch::Tensor forward(const torch::Tensor& x) { return pair(norm(x)); }
  torch::nn::LayerNorm norm;
  WholePair pair;
};

// Ten clipped steps of a block on tp × dp ranks equal those of a single process on the whole batch.
void check_training(Communicator& world, const std::string& layout, bool is_sequence) {
  Mesh mesh(world, MeshLayout::parse(layout, {"dp", "tp"}));
  Communicator& group = mesh.along("tp");
  Communicator& data = mesh.along("dp");
  torch::manual_seed(11);
  BlockImpl ours({.sequence = is_sequence}, group);
  torch::manual_seed(11);
  WholeBlockImpl theirs;
  ours.to(torch::kDouble);
  theirs.to(torch::kDouble);
  DistributedDataParallel ddp(ours, data);
  torch::optim::SGD optimizer(ours.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::SGD whole_optimizer(theirs.parameters(),
                                    torch::optim::SGDOptions(0.1).momentum(0.9));
  const std::vector<torch::Tensor> norm_parameters = ours.norm->parameters();
  for (std::uint64_t step = 0; step < 10; ++step) {
    // Each rank of dp has 6 sequences of 4 tokens. Tokens come first.
    const torch::Tensor batch = draw(100 + step, {4, 6 * data.size(), kIn}, torch::kDouble);
    const torch::Tensor target = batch.sin().narrow(2, 0, kOut);
    const auto part = [&](const torch::Tensor& t) {
      const torch::Tensor of_data = own(t, 1, data);
      return is_sequence ? own(of_data, 0, group) : of_data;
    };
    ddp.zero_grad();
    // The mean over this dp rank's tokens. The ranks of tp share each sequence.
    const double count = static_cast<double>(own(target, 1, data).numel());
    ((ddp(part(batch)) - part(target)).square().sum() / count).backward();
    if (is_sequence) sum_gradients(norm_parameters, group);
    const torch::Tensor norm = clip_gradient_norm(gradient_parts(ours), {.max_norm = 0.5}, group);
    optimizer.step();
    whole_optimizer.zero_grad();
    torch::mse_loss(theirs.forward(batch), target).backward();
    std::vector<torch::Tensor> gradients;
    for (const torch::Tensor& each : theirs.parameters()) gradients.push_back(each.grad());
    const torch::Tensor whole_norm = clip_gradient_norm(gradients, {.max_norm = 0.5});
    expect_close(norm, whole_norm, concat("norm of all gradients, step ", step));
    whole_optimizer.step();
  }
  std::vector<NamedTensor> full = full_tensors(ours, group);
  const auto whole = theirs.named_parameters();
  expect(full.size() == whole.size(), "as many tensors as the whole model has");
  for (const NamedTensor& each : full) {
    expect_close(each.tensor, whole[each.name], each.name + " after ten steps");
  }
  for (const double type : {1.0, 3.0, double(INFINITY)}) {
    std::vector<torch::Tensor> gradients;
    for (const torch::Tensor& each : theirs.parameters()) gradients.push_back(each.grad());
    expect_close(gradient_norm(gradient_parts(ours), type, group),
                 clip_gradient_norm(gradients, {.max_norm = 1e9, .norm_type = type}),
                 concat("norm ", type));
  }
  // The stages of a pipeline add up. Here each rank of dp stands for one.
  expect_close(gradient_norm(gradient_parts(ours), 2, group, &data),
               gradient_norm(gradient_parts(ours), 2, group) * std::sqrt(double(data.size())),
               "norm over the stages");
}

// `save` writes the whole model. `load PATH` reads it, with any number of ranks.
void check_layouts(Communicator& group, const std::string& mode, const std::string& path) {
  torch::manual_seed(21);
  BlockImpl drawn({}, group);
  if (mode == "save") {
    std::vector<torch::Tensor> tensors;
    for (const NamedTensor& each : full_tensors(drawn, group))
      tensors.push_back(each.tensor.detach());
    if (group.rank() == 0) torch::save(tensors, path);
    return;
  }
  std::vector<torch::Tensor> tensors;
  torch::load(tensors, path);
  const std::vector<NamedTensor> expected = full_tensors(drawn, group);
  torch::manual_seed(22);
  BlockImpl loaded({}, group);
  std::vector<NamedTensor> named;
  for (std::size_t i = 0; i < tensors.size(); ++i) named.push_back({expected[i].name, tensors[i]});
  expect(named.size() == expected.size() && named.size() == 6, "all tensors are there");
  load_full_tensors(loaded, named, group);
  const std::vector<NamedTensor> again = full_tensors(loaded, group);
  for (std::size_t i = 0; i < named.size(); ++i) {
    expect_equal(again[i].tensor, named[i].tensor, named[i].name + " as loaded");
    expect_equal(expected[i].tensor, named[i].tensor, named[i].name + " as drawn by another group");
  }
  // Each layer can be loaded by itself, too.
  torch::manual_seed(23);
  Pair pair(Shape{}, group);
  pair->column->load_full(drawn.pair->column->full_weight(), drawn.pair->column->full_bias());
  pair->row->load_full(drawn.pair->row->full_weight(), drawn.pair->row->full_bias());
  expect_equal(pair->column->bias, drawn.pair->column->bias, "the column's bias");
  expect_equal(pair->row->weight, drawn.pair->row->weight, "the row's weight");
  named.erase(named.begin());
  expect_contains(error_of([&] { load_full_tensors(loaded, named, group); }),
                  "there is no norm.weight");
}

void check_refused(Communicator& group) {
  const int n = group.size();
  const auto text = concat("can't be shared evenly by the ", n, " ranks");
  expect_contains(error_of([&] {
                    ColumnParallelLinear(
                        ColumnParallelOptions{.in_features = 4, .out_features = 2 * n + 1}, group);
                  }),
                  text);
  expect_contains(error_of([&] {
                    RowParallelLinear(
                        RowParallelOptions{.in_features = 2 * n + 1, .out_features = 4}, group);
                  }),
                  text);
  expect_contains(error_of([&] { ColumnParallelLinear(ColumnParallelOptions{}, group); }),
                  "both must be positive");
  expect_contains(
      error_of([&] { ColumnParallelConv2d(torch::nn::Conv2dOptions(2, 2 * n + 1, 3), group); }),
      text);
  expect_contains(
      error_of([&] { ColumnParallelConv2d(torch::nn::Conv2dOptions(n, n, 3).groups(n), group); }),
      "no groups");
  expect_contains(error_of([&] { scatter_to_region(torch::ones({2, 2 * n + 1}), group); }), text);
  expect_contains(error_of([&] { gather_from_region(torch::ones({2}, torch::kShort), group); }),
                  "dtype Short");
  Pair pair(Shape{}, group);
  expect_contains(error_of([&] {
                    pair(torch::ones({2, kIn + 1}));
                  }),
                  "its last dimension must be 12");
  expect_contains(error_of([&] {
                    pair->row->load_full(torch::ones({3, 3}), torch::ones({kOut}));
                  }),
                  "RowParallelLinear: weight is given as [3, 3]: the whole layer's is [8, 16]");
  expect_contains(error_of([&] { pair->row->load_full(pair->row->full_weight(), {}); }),
                  "given as none");
  const torch::Tensor x = torch::ones({2, kIn}).requires_grad_();
  expect_contains(error_of([&] {
                    torch::autograd::grad({pair(x).sum()}, {x}, {}, true, /*create_graph=*/true);
                  }),
                  "no second derivatives");
  expect_contains(error_of([&] { region_dropout(x, 1.5, true, group); }), "within 0 … 1");
  for (const double type : std::vector<double>{0, -1, -INFINITY, NAN}) {
    expect_contains(
        error_of([&] { gradient_norm({.sharded = {x}, .replicated = {}}, type, group); }),
        "norm_type is");
  }
}

// Things outside the layers that must work with them.
void check_surroundings(Communicator& group) {
  torch::manual_seed(static_cast<std::uint64_t>(group.rank()));  // as if the user forgot the seed
  BlockImpl block({}, group);
  broadcast_replicated(block, group);
  const torch::Tensor bias = block.pair->row->bias.detach().clone();
  expect_equal(full_tensors(block, group).back().tensor, bias, "the bias is a whole one");
  torch::Tensor of_first = bias.clone();
  group.broadcast(
      {.data = of_first.data_ptr(), .count = static_cast<std::size_t>(of_first.numel())}, 0);
  expect_equal(bias, of_first, "broadcast_replicated gives every rank the first one's");
  {
    const Autocast mixed(torch::kCPU, torch::kBFloat16);
    const torch::Tensor x = draw(1, {4, kIn}, torch::kFloat).requires_grad_();
    const torch::Tensor y = block.pair(x);
    expect(y.scalar_type() == torch::kBFloat16, "autocast computes in its type");
    y.to(torch::kFloat).sum().backward();
    expect(x.grad().scalar_type() == torch::kFloat, "and gradients are the parameters'");
    expect(block.pair->row->weight.grad().scalar_type() == torch::kFloat, "those of weights, too");
  }
  const torch::NoGradGuard no_grad;
  expect(!block.forward(torch::ones({2, kIn})).requires_grad(), "no graph where none is wanted");
}

// This is the example of docs/tensor-parallel.md.
struct FeedForwardImpl : torch::nn::Module {
  explicit FeedForwardImpl(Communicator& group) {
    wide = register_module(
        "wide",
        ColumnParallelLinear(ColumnParallelOptions{.in_features = 64, .out_features = 256}, group));
    narrow = register_module(
        "narrow",
        RowParallelLinear(RowParallelOptions{.in_features = 256, .out_features = 64}, group));
  }
  torch::Tensor forward(const torch::Tensor& x) { return narrow(wide(x).relu()); }

  ColumnParallelLinear wide = nullptr;
  RowParallelLinear narrow = nullptr;
};
TORCH_MODULE(FeedForward);

float train(Communicator& world) {
  Mesh mesh(world, MeshLayout::parse("tp2xdp2", {"dp", "tp"}));
  Communicator& group = mesh.along("tp");
  torch::manual_seed(1);  // gives the same on every rank
  FeedForward net(group);
  DistributedDataParallel ddp(*net, mesh.along("dp"));
  FlatOptimizer optimizer({{trainable_parameters(*net), SgdRule{.lr = 1}}}, &ddp);
  float last = 0;
  for (int step = 0; step < 50; ++step) {
    // Ranks of one tensor-parallel group read the same samples.
    torch::manual_seed(100 + static_cast<std::uint64_t>(mesh.coordinate("dp")));
    const torch::Tensor x = torch::randn({32, 64});
    ddp.zero_grad();
    const torch::Tensor loss = torch::mse_loss(ddp(x), x.sin());
    loss.backward();
    clip_gradient_norm(gradient_parts(*net), {.max_norm = 1}, group);
    optimizer.step();
    last = loss.item<float>();
  }
  return last;
}

// Runs until another rank is gone.
void run_until_error(Communicator& group) {
  Pair pair(Shape{}, group);
  for (std::uint64_t step = 0;; ++step) {
    pair->zero_grad();
    pair(draw(step, {4, kIn}, torch::kFloat)).square().sum().backward();
    if (step == 3) std::cout << "running" << std::endl;
  }
}

bool run(Communicator& world, const std::string& mode, const std::string& argument) {
  if (mode == "pairs") {
    check_pairs(world);
  } else if (mode == "functions") {
    check_functions(world);
    check_convolutions(world);
    check_refused(world);
    check_surroundings(world);
  } else if (mode == "training") {
    for (const bool is_sequence : {false, true}) check_training(world, argument, is_sequence);
  } else if (mode == "save" || mode == "load") {
    check_layouts(world, mode, argument);
  } else if (mode == "example") {
    expect(train(world) < 0.1, "the loss falls");  // the loss begins at 0.47
  } else if (mode == "until_error") {
    run_until_error(world);
  } else {
    return false;
  }
  return true;
}

}  // namespace

int program(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "", argument = argc > 2 ? argv[2] : "";
  torch::set_num_threads(1);
  return run_worker("tensor_parallel_worker", mode,
                    [&](Communicator& world) { return run(world, mode, argument); });
}

}  // namespace tensor_parallel_worker
