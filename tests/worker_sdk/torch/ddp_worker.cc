// SPDX-License-Identifier: Apache-2.0
// One rank of the tests of DistributedDataParallel (ddp_test.py, equality_test.py):
//
//   ddp_worker equality DTYPES ACCUMULATE WEIGHTS DATA_DIR OUT
//
// trains 20 steps and writes OUT.<dtype>.<rank>;
//
//   ddp_worker alone|overlap|mismatch|unused|misuse|state|streams|cast|order
//
// checks, and exits with 0 where all holds.
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "apps/train/idx_file.h"
#include "common/error.h"
#include "common/text.h"
#include "tests/worker_sdk/torch/counted_calls.h"
#include "tests/worker_sdk/torch/stream_parts.h"
#include "tests/worker_sdk/torch/worker_program.h"
#include "worker_sdk/ddp/distributed_sampler.h"
#include "worker_sdk/torch/cast_hook.h"
#include "worker_sdk/torch/checkpoint.h"
#include "worker_sdk/torch/current_stream.h"
#include "worker_sdk/torch/distributed_data_parallel.h"
#include "worker_sdk/torch/flat_optimizer.h"
#include "worker_sdk/torch/gradient_clipping.h"
#include "worker_sdk/torch/tensor_exchange.h"

using namespace ddprun;
using namespace ddprun::testing;

namespace ddp_worker {
namespace {

constexpr int kNumSteps = 20;
constexpr std::int64_t kBatchSize = 8;  // of each rank and backward
constexpr BucketLimits kSmallBuckets{.first_bytes = 1024, .cap_bytes = 8192};

// Convolution, batch norm (buffers) and linear layers; pytorch_twin.py has its twin.
struct SmallNetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(norm(conv(x))), 2).flatten(1);
    return torch::log_softmax(fc2(torch::tanh(fc1(x))), 1);
  }
  torch::nn::Conv2d conv = register_module("conv", torch::nn::Conv2d(1, 4, 3));
  torch::nn::BatchNorm2d norm = register_module("norm", torch::nn::BatchNorm2d(4));
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(676, 32));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(32, 10));
};
TORCH_MODULE(SmallNet);

struct MlpImpl : torch::nn::Module {
  MlpImpl(std::int64_t width, int num_layers) {
    for (int i = 0; i < num_layers; ++i) layers->push_back(torch::nn::Linear(width, width));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& layer : *layers) x = torch::tanh(layer->as<torch::nn::Linear>()->forward(x));
    return x;
  }
  torch::nn::ModuleList layers = register_module("layers", torch::nn::ModuleList());
};
TORCH_MODULE(Mlp);

// Parameters, then buffers, as float64 in the order of registration.
std::vector<torch::Tensor> state_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> state = module.parameters();
  for (const torch::Tensor& buffer : module.buffers()) state.push_back(buffer);
  return state;
}

void load_state(torch::nn::Module& module, const std::string& path) {
  const torch::NoGradGuard no_grad;
  std::ifstream file(path, std::ios::binary);
  for (torch::Tensor& tensor : state_of(module)) {
    torch::Tensor values = torch::empty(tensor.sizes(), torch::kDouble);
    file.read(static_cast<char*>(values.mutable_data_ptr()),
              static_cast<std::streamsize>(values.nbytes()));
    tensor.copy_(values);
  }
  expect(bool(file), "the weights file has all of the state");
}

void save_state(const torch::nn::Module& module, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  for (const torch::Tensor& tensor : state_of(module)) {
    const torch::Tensor values = tensor.detach().to(torch::kDouble).contiguous();
    file.write(static_cast<const char*>(values.const_data_ptr()),
               static_cast<std::streamsize>(values.nbytes()));
  }
  expect(bool(file), "the state is written");
}

void run_equality(Communicator& communicator, const std::string& dtype_name,
                  const std::vector<std::string>& arguments) {
  const auto dtype = dtype_name == "float64" ? torch::kDouble : torch::kFloat;
  const int accumulate = std::stoi(arguments.at(1));
  const train::DataSet data = train::read_data_set(arguments.at(3));
  SmallNet net;
  net->to(dtype);
  // The other ranks get it from rank 0.
  if (communicator.rank() == 0) load_state(*net, arguments.at(2));
  DistributedDataParallel ddp(*net, communicator, {.buckets = kSmallBuckets});
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));

  const auto count = static_cast<std::int64_t>(data.train.count);
  const DistributedSampler sampler(count, communicator.size(), communicator.rank(), {.seed = 3});
  std::vector<std::int64_t> order = sampler.indices(0);
  const torch::Tensor pixels = torch::from_blob(const_cast<std::uint8_t*>(data.train.pixels.data()),
                                                {count, 1, 28, 28}, torch::kByte);
  const torch::Tensor labels =
      torch::from_blob(const_cast<std::uint8_t*>(data.train.labels.data()), {count}, torch::kByte);
  std::int64_t position = 0;
  const auto backward = [&] {
    std::vector<std::int64_t> batch;
    for (std::int64_t i = 0; i < kBatchSize; ++i) {
      batch.push_back(order[static_cast<std::size_t>(position++ % sampler.size())]);
    }
    const torch::Tensor indices = torch::tensor(batch);
    const torch::Tensor input = pixels.index_select(0, indices).to(dtype) / 255;
    const torch::Tensor target = labels.index_select(0, indices).to(torch::kLong);
    (torch::nll_loss(ddp(input), target) / accumulate).backward();
  };
  for (int step = 0; step < kNumSteps; ++step) {
    ddp.zero_grad();
    for (int i = 0; i + 1 < accumulate; ++i) {
      const auto local = ddp.no_sync();
      backward();
    }
    backward();
    optimizer.step();
  }
  expect(ddp.bucket_plan().size() > 1, "there are several buckets");
  save_state(*net, concat(arguments.at(4), ".", dtype_name, ".", communicator.rank()));
}

void run_overlap(Communicator& communicator) {
  Mlp net(512, 12);  // 1 MiB of gradients per layer
  DistributedDataParallel ddp(*net, communicator,
                              {.buckets = {.first_bytes = 1 << 20, .cap_bytes = 2 << 20}});
  const torch::Tensor input = torch::randn({256, 512});
  int num_hidden = 0;
  for (int step = 0; step < 10; ++step) {
    ddp.zero_grad();
    ddp(input).square().mean().backward();
    const IterationTrace& trace = ddp.trace();
    if (step == 0) {
      expect(trace.buckets.size() == 1, "the first iteration has one bucket");
      continue;
    }
    expect(trace.buckets.size() >= 5, "the rebuild made several buckets");
    for (std::size_t b = 0; b + 1 < trace.buckets.size(); ++b) {
      expect(trace.buckets[b].launched < trace.backward_end,
             "bucket " + std::to_string(b) + " starts before backward ends");
      num_hidden += trace.buckets[b].done_at_backward_end;
    }
  }
  std::cout << num_hidden << " all-reduces were over before backward was" << std::endl;
  expect(num_hidden > 0, "some all-reduce is over before backward is");
}

// Rank 1 goes forward, rank 0 does something else. Rank 1 hears what it sent.
void run_alone(Communicator& communicator) {
  const char* const sent[] = {"rank 0's buffers", "the order of the buckets"};
  for (int num_steps = 0; num_steps < 2; ++num_steps) {
    const auto pair = communicator.split({0, 1}, {.name = concat("after ", num_steps)});
    torch::nn::BatchNorm1d norm(2);
    DistributedDataParallel ddp(*norm, *pair);
    const auto forward = [&] { return ddp(torch::ones({4, 2})); };
    for (int step = 0; step < num_steps; ++step) forward().sum().backward();
    if (communicator.rank() == 0) {
      expect_contains(error_of([&] { pair->barrier(); }), "barrier");
    } else {
      expect_contains(error_of(forward),
                      concat("; here DistributedDataParallel sent ", sent[num_steps],
                             " before a forward: all ranks go forward through it equally often; "
                             "one that evaluates alone calls module()"));
    }
  }
}

void run_mismatch(Communicator& communicator) {
  const bool other = communicator.rank() == communicator.size() - 1;
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, other ? 3 : 2));
  const std::string error = error_of([&] { DistributedDataParallel ddp(*net, communicator); });
  expect_contains(error, "rank " + std::to_string(communicator.size() - 1) +
                             ": parameter 1.weight is Float [3, 4], on rank 0 it is Float [2, 4]");

  torch::nn::Linear linear(4, 4);
  if (other) linear->to(torch::kDouble);
  expect_contains(error_of([&] { DistributedDataParallel ddp(*linear, communicator); }),
                  "parameter weight is Double [4, 4], on rank 0 it is Float [4, 4]");

  // After a refused model the communicator can still be used.
  torch::nn::Linear good(4, 4);
  DistributedDataParallel ddp(*good, communicator);
  ddp(torch::ones({1, 4})).sum().backward();
}

// The other ranks' answer is copied to the host, for which a GPU would be waited for, only where a
// parameter of this rank is unused.
void check_waits_for_answers(Communicator& communicator) {
  torch::nn::Linear first(4, 4), second(4, 4);
  torch::nn::Sequential net(first, second);
  DistributedDataParallel ddp(*net, communicator, {.find_unused_parameters = true});
  const bool is_first_rank = communicator.rank() == 0;
  const auto copies_of_backward = [&](bool uses_all) {
    ddp.zero_grad();
    ddp.before_forward();
    torch::Tensor output = first(torch::ones({1, 4})).sum();
    if (uses_all) output = output + second(torch::ones({1, 4})).sum();
    ddp.after_forward({output});
    const CountedCalls calls;
    output.backward();
    return calls.of("to");
  };
  const int of_all = copies_of_backward(true), of_some = copies_of_backward(is_first_rank);
  expect(of_some == of_all + (is_first_rank ? 0 : 1), "only those that lack a gradient wait");
}

void run_unused(Communicator& communicator) {
  check_waits_for_answers(communicator);
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  DistributedDataParallel ddp(*net, communicator);
  const std::string error = error_of([&] {
    ddp.before_forward();
    net[0]->as<torch::nn::Linear>()->forward(torch::ones({1, 4})).sum().backward();
  });
  expect_contains(
      error, "no gradient for 1.weight, 1.bias on rank " + std::to_string(communicator.rank()));
}

// Passes its input on. Its backward throws if `armed`.
struct Fuse : torch::autograd::Function<Fuse> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                               torch::autograd::tensor_list gradients) {
    if (armed) throw std::runtime_error("the fuse has blown");
    return gradients;
  }
  static inline bool armed = false;
};

// Gradients that would silently not be averaged are refused by the next forward.
void run_misuse(Communicator& communicator) {
  const torch::Tensor input = torch::ones({2, 4});
  const auto make = [] {
    return torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  };
  {
    torch::nn::Sequential net = make();
    DistributedDataParallel ddp(*net, communicator);
    expect_contains(error_of([&] { DistributedDataParallel second(*net, communicator); }),
                    "another DistributedDataParallel averages the gradient of 0.weight");
    ddp(input).sum().backward();
    net->to(torch::kDouble);
    expect_contains(
        error_of([&] { ddp(input.to(torch::kDouble)); }),
        "parameter 0.weight is Double [4, 4] on cpu now, it was wrapped as Float [4, 4]");
    net->to(torch::kFloat);
  }
  {
    torch::nn::Sequential net = make();
    torch::Tensor frozen = net[1]->as<torch::nn::Linear>()->bias;
    frozen.set_requires_grad(false);
    DistributedDataParallel ddp(*net, communicator);
    ddp(input).sum().backward();
    frozen.set_requires_grad(true);
    expect_contains(error_of([&] { ddp(input); }),
                    "parameter 1.bias requires a gradient now, it was frozen");
    const torch::NoGradGuard no_grad;
    ddp(input);  // this forward is an evaluation
  }
  {
    torch::nn::Sequential net = make();
    CapturesGraph captures(communicator);
    DistributedDataParallel ddp(*net, captures);
    captures.is_on = true;
    expect_contains(error_of([&] { ddp(input); }),
                    "a CUDA graph is captured, and neither forward nor backward can be part of");
    captures.is_on = false;
    ddp(input).sum().backward();
  }
  torch::nn::Linear odd(2, 2);
  odd->register_buffer("mask", torch::eye(3).to_sparse());
  const auto wrap = [&](const DdpOptions& options) {
    const DistributedDataParallel ddp(*odd, communicator, options);
  };
  expect_contains(error_of([&] { wrap({}); }), "buffer mask is sparse: it can't be sent");
  odd->register_parameter("wide", torch::zeros({1}).expand({4}));
  expect_contains(error_of([&] { wrap({.ignored = {"mask"}}); }),
                  "parameter wide's elements share memory: it can't be sent; clone() it first");
  wrap({.ignored = {"mask", "wide"}});

  torch::nn::Linear linear(2, 2);
  FlatOptimizer optimizer({{trainable_parameters(*linear), SgdRule{}}});
  for (const double wrong : {-1.0, std::nan("")}) {
    expect_contains(error_of([&] { optimizer.set_lr(wrong); }), "it must be a number");
    expect_contains(error_of([&] { clip_gradient_norm({}, {.max_norm = wrong}); }), "max_norm is ");
  }

  torch::nn::Sequential nothing(torch::nn::Functional(torch::tanh));
  expect_contains(error_of([&] { DistributedDataParallel ddp(*nothing, communicator); }),
                  "the model has no parameter that requires a gradient");

  torch::nn::Sequential net = make();  // a net that was wrapped may be wrapped again
  { const DistributedDataParallel ddp(*net, communicator); }
  DistributedDataParallel ddp(*net, communicator);
  const auto step = [&] {
    ddp.before_forward();
    const torch::Tensor hidden = net[0]->as<torch::nn::Linear>()->forward(input);
    net[1]->as<torch::nn::Linear>()->forward(Fuse::apply(hidden)).sum().backward();
  };
  step();
  Fuse::armed = true;
  bool blown = false;
  try {
    step();
  } catch (const std::runtime_error& error) {
    blown = std::string(error.what()).find("the fuse has blown") != std::string::npos;
  }
  expect(blown, "an exception in backward comes out");
  Fuse::armed = false;
  for (int i = 0; i < 2; ++i) {
    expect_contains(error_of(step), concat("the backward before did not end on rank ",
                                           communicator.rank(), ", it threw"));
  }
}

// The hook of gradients on a GPU, here on the CPU: the communicator is one that wants sums.
void check_cast_hook(Communicator& communicator, c10::ScalarType wire, double tolerance) {
  LikeNccl like_nccl(communicator);
  torch::nn::Linear narrow(8, 8), wide(8, 8);
  wide->to(torch::kDouble);
  torch::nn::Sequential net(narrow, wide);
  DistributedDataParallel ddp(*net, like_nccl, {.comm_hook = make_cast_hook(wire)});
  const torch::Tensor input = torch::arange(8.0F).view({1, 8}) + communicator.rank();
  const auto loss = [&] {
    return narrow(input).pow(2).sum() + wide(input.to(torch::kDouble)).pow(2).sum();
  };
  const std::vector<torch::Tensor> parameters = net->parameters();
  constexpr int kSteps = 3;  // the second one forms the buckets anew
  for (int step = 0; step < kSteps; ++step) {
    ddp.zero_grad();
    ddp.before_forward();
    loss().backward();
    for (const torch::Tensor& parameter : parameters) {
      torch::Tensor mean = torch::autograd::grad({loss()}, {parameter})[0].to(torch::kDouble);
      mean = mean.contiguous();
      communicator.all_reduce(torch_adapter::view_of(mean, "mean"), ReduceOp::kAverage);
      const bool is_wide = parameter.scalar_type() == torch::kDouble;
      const torch::Tensor error = (parameter.grad() - mean).abs().max();
      const double limit = (is_wide ? 1e-12 : tolerance) * mean.abs().max().item<double>();
      expect(error.item<double>() <= limit, concat("a mean, but for ", error.item<double>()));
      expect(!is_wide || error.item<double>() < tolerance / 1e6, "float64 travels as it is");
      const torch::Tensor first_ranks = parameter.grad().clone();
      communicator.broadcast(torch_adapter::view_of(first_ranks, "gradient"), 0);
      expect(first_ranks.equal(parameter.grad()), "all ranks have the same bits");
    }
  }
  // 64 + 8 numbers on lines of 64 bytes take 320 bytes as float32, and half of them are saved.
  const GradientTraffic& traffic = ddp.traffic();
  expect(traffic.uncompressed_bytes - traffic.sent_bytes == kSteps * 160, "half of float32");
}

void run_cast_hooks(Communicator& communicator) {
  check_cast_hook(communicator, torch::kHalf, 1e-2);
  check_cast_hook(communicator, torch::kBFloat16, 5e-2);
  expect_contains(error_of([] { make_cast_hook(torch::kFloat); }),
                  "gradients can't travel as Float: a cast hook takes float16 and bfloat16");
  const auto on_gpu = [](const char* text) {
    return make_comm_hook(parse_compression(text), torch::Device(torch::kCUDA, 0));
  };
  expect(on_gpu("none") == nullptr && on_gpu("fp16") && on_gpu("bf16"), "those of a GPU");
}

float mean_of_ranks(Communicator& communicator) {
  return static_cast<float>(communicator.size() - 1) / 2;
}

// The gradient of sum(w · x) with x = rank is the rank, so the average tells which ranks took part.
void check_gradients(Communicator& communicator) {
  torch::nn::Linear net(torch::nn::LinearOptions(3, 1).bias(false));
  DistributedDataParallel ddp(*net, communicator);
  const torch::Tensor input = torch::full({1, 3}, static_cast<float>(communicator.rank()));
  const auto gradient = [&] { return net->weight.grad()[0][2].item<float>(); };
  const float mean = mean_of_ranks(communicator);

  ddp(input).sum().backward();
  expect(gradient() == mean, "the first gradient is the ranks' mean");
  ddp(input).sum().backward();
  expect(gradient() == 2 * mean, "without zero_grad gradients add up, across the rebuild too");
  const void* place = net->weight.grad().const_data_ptr();

  ddp.zero_grad();
  {
    const auto local = ddp.no_sync();
    ddp(input).sum().backward();
    expect(gradient() == static_cast<float>(communicator.rank()), "no_sync keeps gradients local");
  }
  ddp(input).sum().backward();
  expect(gradient() == 2 * mean, "the next backward averages what no_sync left");
  expect(net->weight.grad().const_data_ptr() == place, "the gradient is a view of its bucket");

  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (const bool set_to_none : {false, true}) {
    optimizer.zero_grad(set_to_none);
    ddp(input).sum().backward();
    expect(gradient() == mean, "Optimizer::zero_grad works");
    expect(net->weight.grad().const_data_ptr() == place, "and the gradient is in its bucket again");
  }
}

// One layer under two names.
struct TiedImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return second(first(x)); }
  torch::nn::Linear first =
      register_module("first", torch::nn::Linear(torch::nn::LinearOptions(300, 300).bias(false)));
  torch::nn::Linear second = register_module("second", first);
};
TORCH_MODULE(Tied);

void check_shared_parameters(Communicator& communicator) {
  Tied net;
  DistributedDataParallel ddp(*net, communicator, {.buckets = {.first_bytes = 1, .cap_bytes = 1}});
  const torch::Tensor input =
      torch::full({2, 300}, 0.01F + static_cast<float>(communicator.rank()));
  for (int step = 0; step < 3; ++step) {
    ddp.zero_grad();
    ddp(input).sum().backward();
    expect(ddp.bucket_plan() == BucketPlan{{0}}, "a shared parameter is averaged once");
    torch::Tensor expected =
        torch::autograd::grad({net->forward(input).sum()}, {net->first->weight})[0];
    const TensorView view{.data = (expected = expected.contiguous()).mutable_data_ptr(),
                          .count = static_cast<std::size_t>(expected.numel())};
    communicator.all_reduce(view, ReduceOp::kAverage);
    expect(torch::allclose(net->first->weight.grad(), expected), "and its gradient is the average");
  }
}

void check_buffers(Communicator& communicator) {
  const auto rank = static_cast<float>(communicator.rank());
  torch::nn::BatchNorm1d norm(2);
  norm->running_mean.fill_(rank + 5);
  DistributedDataParallel ddp(*norm, communicator);
  expect(norm->running_mean[0].item<float>() == 5, "the constructor takes rank 0's buffers");
  ddp(torch::full({4, 2}, rank)).sum().backward();
  norm->running_mean.fill_(rank + 7);
  ddp(torch::full({4, 2}, 7.0F));  // rank 0's 7 comes before it, so the mean stays 7
  expect(std::abs(norm->running_mean[0].item<float>() - 7) < 1e-5,
         "forward starts with rank 0's buffers");

  torch::nn::Sequential several(torch::nn::BatchNorm1d(2), torch::nn::BatchNorm1d(2));
  DistributedDataParallel sends(*several, communicator);
  for (int step = 0; step < 3; ++step) {  // the second step forms the buckets anew
    for (torch::Tensor& buffer : several->buffers()) buffer.fill_(communicator.rank() + step);
    const CountedCalls calls;
    sends.before_forward();
    expect(step < 2 || communicator.size() == 1 ||
               (calls.of("_foreach_copy_") == 2 && calls.of("narrow") + calls.of("empty") == 0),
           "a copy per dtype, and nothing else once it is set up");
    for (const torch::Tensor& buffer : several->buffers()) {
      expect(buffer.eq(step).all().item<bool>(), "all buffers are rank 0's");
    }
    sends(torch::ones({4, 2})).sum().backward();
  }

  torch::nn::BatchNorm1d own(2);
  DistributedDataParallel keeps(*own, communicator, {.broadcast_buffers = false});
  own->running_mean.fill_(rank);
  keeps(torch::full({4, 2}, rank));
  expect(std::abs(own->running_mean[0].item<float>() - rank) < 1e-6,
         "broadcast_buffers = false leaves buffers alone");
}

// A buffer changes between two broadcasts, and back. The ranks still get rank 0's values.
void check_changed_buffers(Communicator& communicator) {
  const auto rank = static_cast<float>(communicator.rank());
  torch::Tensor buffer = torch::empty({0});
  torch_adapter::TensorBroadcast broadcast({buffer, torch::full({3}, rank)}, torch::kCPU);
  const std::int64_t side = 1 << 10;  // 4 MiB travel alone if they are dense
  const torch::Tensor wide = torch::empty({side, 2 * side});
  const std::vector<std::pair<const char*, torch::Tensor>> others = {
      {"empty", torch::empty({0})},
      {"grown", torch::empty({5})},
      {"large", torch::empty({side, side})},
      {"no longer dense", wide.narrow(1, 0, side)},
      {"large again", torch::empty({side, side})},
      {"an uncommon dtype", torch::empty({5}, torch::kUInt16)}};
  for (const auto& [what, other] : others) {
    buffer.set_data(other);
    buffer.fill_(communicator.rank() + 1);
    broadcast.run(0, communicator);
    expect(buffer.to(torch::kFloat).eq(1).all().item<bool>(), concat(what, ": rank 0's values"));
  }
}

// These counts are more than 32 bits or a double hold.
void check_whole_numbers(Communicator& communicator) {
  const std::int64_t large = (std::int64_t{1} << 55) + 1, size = communicator.size();
  torch::Tensor counts = torch::tensor({large, -large}, torch::kLong);
  communicator.all_reduce(torch_adapter::view_of(counts, "counts"), ReduceOp::kSum);
  expect(counts.equal(torch::tensor({size * large, -size * large}, torch::kLong)),
         "int64 is summed");
}

void check_layouts_and_dtypes(Communicator& communicator) {
  torch::nn::Sequential net(torch::nn::Conv2d(3, 8, 3), torch::nn::Conv2d(8, 2, 1));
  net->to(torch::kDouble);
  for (torch::Tensor& parameter : net->parameters()) {
    const torch::NoGradGuard no_grad;
    if (parameter.dim() != 4) continue;
    parameter.set_data(parameter.contiguous(torch::MemoryFormat::ChannelsLast));
  }
  net[1]->as<torch::nn::Conv2d>()->bias.set_requires_grad(false);
  DistributedDataParallel ddp(*net, communicator);
  const torch::Tensor input = torch::full({1, 3, 5, 5}, 1.0 + communicator.rank(), torch::kDouble);
  for (int step = 0; step < 2; ++step) {
    ddp.zero_grad();
    ddp(input).sum().backward();
    torch::Tensor expected =
        torch::autograd::grad({net->forward(input).sum()}, {net->parameters()[0]})[0];
    const TensorView view{.data = (expected = expected.contiguous()).mutable_data_ptr(),
                          .count = static_cast<std::size_t>(expected.numel()),
                          .dtype = DType::kFloat64};
    communicator.all_reduce(view, ReduceOp::kAverage);
    const torch::Tensor gradient = net->parameters()[0].grad();
    expect(torch::allclose(gradient, expected), "a channels-last gradient is averaged");
    expect(gradient.strides() == net->parameters()[0].strides(), "and keeps its strides");
  }
  expect(!net->parameters()[3].grad().defined(), "a frozen parameter gets no gradient");
}

// The whole plan for run_order()'s net, as one list.
std::vector<std::size_t> launch_order(const DdpBase& ddp) {
  std::vector<std::size_t> order;
  for (const auto& bucket : ddp.bucket_plan())
    order.insert(order.end(), bucket.begin(), bucket.end());
  return order;
}

// A given order makes the buckets, from the first step on. A run that goes on needs this.
void run_order(Communicator& communicator) {
  const torch::Tensor input = torch::ones({2, 32}) * static_cast<float>(communicator.rank() + 1);
  BucketPlan learned;
  std::vector<std::string> order;
  {
    Mlp net(32, 6);
    DistributedDataParallel ddp(*net, communicator, {.buckets = kSmallBuckets});
    expect(ddp.gradient_order().empty(), "no order is known before the first step");
    ddp(input).sum().backward();
    expect(ddp.bucket_plan().size() == 1, "the first step has one bucket");
    order = ddp.gradient_order();
    ddp(input).sum().backward();
    learned = ddp.bucket_plan();
    expect(learned.size() > 2, "the second has several");
    expect(ddp.gradient_order() == order, "by the order that the first has shown");
  }
  const std::vector<DdpOptions> modes{{.buckets = kSmallBuckets},
                                      {.buckets = kSmallBuckets, .find_unused_parameters = true},
                                      {.buckets = kSmallBuckets, .static_graph = true}};
  const std::vector<std::string> none, unknown{"extra"};
  for (const bool by_arrival : {true, false}) {
    for (const DdpOptions& options : modes) {
      Mlp net(32, 6);
      DistributedDataParallel ddp(*net, communicator, options);
      std::vector<std::string> given = order;
      if (!by_arrival) given = net->named_parameters().keys();  // this order is only the caller's
      for (const auto* wrong : {&none, &unknown}) {
        const BucketPlan before = ddp.bucket_plan();
        expect_contains(error_of([&] { ddp.set_gradient_order(*wrong); }),
                        "the order of gradients does not fit the model: ");
        expect(ddp.bucket_plan() == before, "a refused order changes nothing");
      }
      // Only rank 0's order counts.
      ddp.set_gradient_order(communicator.rank() == 0 ? given : unknown);
      const BucketPlan plan = ddp.bucket_plan();
      expect(ddp.gradient_order() == given, "it is the order from now on");
      if (by_arrival) expect(plan == learned, "the buckets are those of the run before");
      const std::vector<std::size_t> flat = launch_order(ddp);
      if (!by_arrival) expect(std::is_sorted(flat.begin(), flat.end()), "or just as given");
      for (int step = 0; step < 3; ++step) {
        ddp.zero_grad();
        ddp(input).sum().backward();
        expect(ddp.trace().buckets.size() == plan.size(), "the step has these buckets");
        expect(ddp.bucket_plan() == plan, "and the next one");
        torch::Tensor mean =
            torch::autograd::grad({net->forward(input).sum()}, {net->parameters()[0]})[0];
        mean = mean.contiguous();
        communicator.all_reduce(
            {.data = mean.mutable_data_ptr(), .count = static_cast<std::size_t>(mean.numel())},
            ReduceOp::kAverage);
        expect(torch::allclose(net->parameters()[0].grad(), mean), "a gradient is the average");
      }
      const auto join = ddp.join();
      expect_contains(error_of([&] { ddp.set_gradient_order(given); }), "not within a join");
    }
  }
}

// The communicator gets LibTorch's current stream by itself.
void run_streams(Communicator& communicator, const std::string& directory) {
  ToldOfStreams ddps(communicator), checkpoints(communicator);
  torch::nn::Linear net(4, 4);
  const DistributedDataParallel ddp(*net, ddps);
  const Checkpoint checkpoint({.directory = directory}, checkpoints, torch::kCPU);
  expect(ddps.told && checkpoints.told, "both have told it");
  expect(ddps.told(0) == nullptr, "without CUDA: the default stream");
  StreamsOfNoGpu::install();
  expect(ddps.told(0) == nullptr, "CUDA's default stream");
  {
    const c10::Stream mine(c10::Stream::UNSAFE, {torch::kCUDA, 0}, 7);
    const c10::StreamGuard guard(mine);
    expect(ddps.told(0) == reinterpret_cast<void*>(7), "DistributedDataParallel's");
    expect(checkpoints.told(0) == reinterpret_cast<void*>(7), "Checkpoint's");
    expect(current_torch_stream(0) == reinterpret_cast<void*>(7), "the program's own");
  }
  expect(ddps.told(0) == nullptr, "the default stream again");
  expect_contains(error_of([] { current_torch_stream(1); }),
                  "LibTorch's current stream on GPU 1: there is no GPU 1");
}

// In the fourth step rank 1 multiplies by NaN between its two layers.
void run_nan(Communicator& communicator, bool by_option) {
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 2));
  DistributedDataParallel ddp(*net, communicator, DdpOptions{.check_nan = by_option});
  for (int step = 0; step < 4; ++step) {
    const bool is_bad = step == 3 && communicator.rank() == 1;
    torch::Tensor loss = ddp(torch::ones({3, 4})).sum();
    if (step == 3) std::cout << "three steps were well" << std::endl;
    (is_bad ? loss * std::nan("") : loss).backward();
  }
}

}  // namespace

int program(int argc, char** argv) {
  torch::set_num_threads(1);
  const std::string mode = argc > 1 ? argv[1] : "";
  const std::vector<std::string> arguments(argv + std::min(argc, 2), argv + argc);
  return run_worker("ddp_worker", mode, [&](Communicator& communicator) {
    // The ranks start with different weights.
    torch::manual_seed(static_cast<std::uint64_t>(communicator.rank()));
    if (mode == "equality") {
      std::istringstream dtypes(arguments.at(0));
      for (std::string dtype; std::getline(dtypes, dtype, ',');) {
        run_equality(communicator, dtype, arguments);
      }
    } else if (mode == "overlap") {
      run_overlap(communicator);
    } else if (mode == "mismatch") {
      run_mismatch(communicator);
    } else if (mode == "alone") {
      run_alone(communicator);
    } else if (mode == "unused") {
      run_unused(communicator);
    } else if (mode == "misuse") {
      run_misuse(communicator);
    } else if (mode == "state") {
      check_gradients(communicator);
      check_shared_parameters(communicator);
      check_buffers(communicator);
      check_changed_buffers(communicator);
      check_layouts_and_dtypes(communicator);
      check_whole_numbers(communicator);
    } else if (mode == "nan") {
      run_nan(communicator, !arguments.empty());
    } else if (mode == "cast") {
      run_cast_hooks(communicator);
    } else if (mode == "order") {
      run_order(communicator);
    } else if (mode == "streams") {
      run_streams(communicator, arguments.at(0));
    } else {
      return false;
    }
    return true;
  });
}

}  // namespace ddp_worker
