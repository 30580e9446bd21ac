// SPDX-License-Identifier: Apache-2.0
// Models of many kinds, trained by DistributedDataParallel and by PyTorch's engine. Parameters,
// buffers and gradients end the same, see tolerance(). A model that can't be trained is refused by
// name. equality_test.py and modes_test.py compare with PyTorch's from Python, over gloo.
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/text.h"
#include "tests/worker_sdk/torch/pytorch_ddp.h"
#include "tests/worker_sdk/torch/worker_program.h"
#include "worker_sdk/torch/distributed_data_parallel.h"
#include "worker_sdk/torch/sparse_gradients.h"

using namespace ddprun;
using namespace ddprun::testing;

namespace models_worker {
namespace {

namespace F = torch::nn::functional;
using torch::Tensor;
using torch::nn::Linear;

constexpr int kNumSteps = 5;
constexpr std::int64_t kBatch = 4, kWidth = 8;

// Input and rank → loss.
using Loss = std::function<Tensor(const Tensor& x, int rank)>;

struct Net : torch::nn::Module {
  Tensor forward(const Tensor& x, int rank) { return loss(x, rank); }
  void replace(const std::string& name, const Tensor& parameter) {
    parameters_[name] = parameter.requires_grad_();
  }
  Loss loss;
};

struct Model {
  const char* name;
  std::function<Loss(Net&)> build;
  DdpOptions options{};
  torch::Dtype dtype = torch::kFloat;  // of the input
  const char* refusal = nullptr;       // a part of the error's text
  bool creates_graph = false;          // whether backward creates a graph
  bool accumulates = false;            // a backward under no_sync comes before each averaged one
  // The model that PyTorch trains, where it refuses this one. Both have the same averages.
  std::function<Loss(Net&)> build_theirs = nullptr;
};

Tensor draw(std::uint64_t seed, at::IntArrayRef sizes, torch::Dtype dtype) {
  torch::manual_seed(seed);
  return torch::randn(sizes, torch::kDouble).to(dtype);
}

// The net learns its input's sine, for all shapes.
Tensor error_of_sine(const Tensor& output, const Tensor& x) {
  return (output - x.sin().sum()).square().mean();
}

Tensor indices_of(const Tensor& x) { return (x.abs() * 5).to(torch::kLong).remainder(10); }

torch::nn::EmbeddingOptions sparse_rows() {
  return torch::nn::EmbeddingOptions(10, 6).sparse(true);
}

// Puts a layer between two others.
template <typename Layer>
std::function<Loss(Net&)> around(Layer layer_of, std::vector<std::int64_t> shape) {
  return [=](Net& net) -> Loss {
    Linear in = net.register_module("in", Linear(kWidth, 64));
    auto layer = net.register_module("layer", layer_of());
    return [in, layer, shape](const Tensor& x, int) mutable {
      return error_of_sine(layer->forward(in->forward(x).view(shape)), x);
    };
  };
}

// The same for a layer that also returns its state.
template <typename Layer>
std::function<Loss(Net&)> recurrent(Layer layer_of) {
  return [=](Net& net) -> Loss {
    auto layer = net.register_module("layer", layer_of());
    return [layer](const Tensor& x, int) mutable {
      return error_of_sine(std::get<0>(layer->forward(x.view({kBatch, 2, kWidth / 2}))), x);
    };
  };
}

// A model of one parameter, and its use.
std::function<Loss(Net&)> one(std::function<Tensor()> initial,
                              std::function<Tensor(const Tensor& w, const Tensor& x)> use) {
  return [=](Net& net) -> Loss {
    const Tensor w = net.register_parameter("w", initial());
    return [w, use](const Tensor& x, int) { return error_of_sine(use(w, x), x); };
  };
}

Tensor matrix(torch::Dtype dtype = torch::kFloat) { return draw(7, {kWidth, kWidth}, dtype); }

Tensor times(const Tensor& w, const Tensor& x) { return x.matmul(w); }

struct Square : torch::autograd::Function<Square> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& input) {
    context->save_for_backward({input});
    return input.square();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {2 * context->get_saved_variables()[0] * gradients[0]};
  }
};

Loss experts(Net& net) {
  std::vector<Linear> all;
  for (int i = 0; i < 5; ++i) all.push_back(net.register_module(concat("e", i), Linear(kWidth, 1)));
  return [all](const Tensor& x, int rank) {
    const auto first = static_cast<std::size_t>(x[0][0].item<float>() > 0);
    Linear chosen = all[first + static_cast<std::size_t>(rank)];  // no rank uses the last one
    return error_of_sine(chosen->forward(x), x);
  };
}

// A sparse embedding, and what rank 1 makes of the rows that it reads.
std::function<Loss(Net&)> sparse(std::function<Tensor(std::function<Tensor()> read)> on_rank_1) {
  return [=](Net& net) -> Loss {
    torch::nn::Embedding rows = net.register_module("rows", torch::nn::Embedding(sparse_rows()));
    Linear out = net.register_module("out", Linear(6, 1));
    return [=](const Tensor& x, int rank) mutable {
      const auto read = [&] { return rows->forward(indices_of(x)).mean(1); };
      return error_of_sine(out->forward(rank == 1 ? on_rank_1(read) : read()), x);
    };
  };
}

Tensor reads(const std::function<Tensor()>& read) { return read(); }
Tensor reads_nothing(const std::function<Tensor()>&) { return torch::ones({kBatch, 6}); }
Tensor reads_in_vain(const std::function<Tensor()>& read) { return 0 * read() + 1; }

// Some parts are trained, and one isn't.
Loss frozen(Net& net) {
  Linear in = net.register_module("in", Linear(kWidth, kWidth));
  Linear still = net.register_module("still", Linear(kWidth, kWidth));
  Linear out = net.register_module("out", Linear(kWidth, 1));
  for (Tensor& parameter : still->parameters()) parameter.requires_grad_(false);
  return [=](const Tensor& x, int) mutable {
    Tensor h = still->forward(in->forward(x));
    {
      const torch::NoGradGuard no_grad;
      h = h + out->forward(h).detach();
    }
    return error_of_sine(out->forward(still->forward(in->forward(x)) + h), x);
  };
}

Loss penalised(Net& net) {
  Linear in = net.register_module("in", Linear(kWidth, kWidth));
  Linear out = net.register_module("out", Linear(kWidth, 1));
  return [=](const Tensor& x, int) mutable {
    const Tensor input = x.detach().requires_grad_();
    const Tensor output = out->forward(torch::tanh(in->forward(input)));
    const Tensor slope = torch::autograd::grad({output.sum()}, {input}, {}, true, true)[0];
    return error_of_sine(output, x) + (slope.norm() - 1).square();
  };
}

// One weight has two names.
Loss tied(Net& net) {
  const Tensor w = net.register_parameter("w", draw(7, {6, kWidth}, torch::kFloat));
  auto other = net.register_module("other", std::make_shared<Net>());
  other->register_parameter("w", w);
  return [w](const Tensor& x, int) { return error_of_sine(x.matmul(w.t()).tanh().matmul(w), x); };
}

// The embedding's gradients are sparse, other gradients of the same weight are not, so their sum
// isn't. `hides`: PyTorch's engine doesn't see the layer, and so expects what comes.
std::function<Loss(Net&)> tied_sparse(bool hides) {
  return [=](Net& net) -> Loss {
    torch::nn::Embedding rows{sparse_rows()};
    if (hides) {
      net.register_module("rows", std::make_shared<Net>())
          ->register_parameter("weight", rows->weight);
    } else {
      net.register_module("rows", rows);
    }
    return [=](const Tensor& x, int) mutable {
      const Tensor read = rows->forward(indices_of(x)).mean(1);
      return error_of_sine(read.matmul(rows->weight.t()), x);
    };
  };
}

Loss nested(Net& net) {
  auto outer = net.register_module("outer", std::make_shared<Net>());
  auto inner = outer->register_module("inner", std::make_shared<Net>());
  Linear first = outer->register_module("first", Linear(kWidth, 6));
  Linear second = inner->register_module("second", Linear(6, 1));
  return [=](const Tensor& x, int) mutable {
    return error_of_sine(second->forward(first->forward(x).tanh()), x);
  };
}

Loss used_twice(Net& net) {
  Linear layer = net.register_module("layer", Linear(kWidth, kWidth));
  return [=](const Tensor& x, int) mutable {
    return error_of_sine(layer->forward(layer->forward(x).tanh()), x);
  };
}

Loss channels_last(Net& net) {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(2, 3, 2));
  conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  net.register_module("conv", conv);
  return [=](const Tensor& x, int) mutable {
    const Tensor image = x.view({kBatch, 2, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast);
    return error_of_sine(conv->forward(image), x);
  };
}

Loss complex_weights(Net& net, torch::Dtype real, torch::Dtype complex) {
  const Tensor parts = draw(7, {kWidth, kWidth, 2}, real);
  const Tensor w = net.register_parameter("w", torch::view_as_complex(parts).to(complex));
  const Tensor scale = net.register_parameter("scale", torch::ones({1}, real));
  return
      [=](const Tensor& x, int) { return error_of_sine(x.to(complex).matmul(w).abs() * scale, x); };
}

Loss mixed_dtypes(Net& net) {
  Linear in = net.register_module("in", Linear(kWidth, 6));
  Linear out = net.register_module("out", Linear(6, 1));
  out->to(torch::kDouble);
  return [=](const Tensor& x, int) mutable {
    return error_of_sine(out->forward(in->forward(x).to(torch::kDouble)), x);
  };
}

Loss attention(Net& net) {
  torch::nn::TransformerEncoderLayer layer = net.register_module(
      "layer", torch::nn::TransformerEncoderLayer(
                   torch::nn::TransformerEncoderLayerOptions(kWidth, 2).dim_feedforward(6)));
  return [=](const Tensor& x, int) mutable {
    return error_of_sine(layer->forward(x.unsqueeze(1)), x);
  };
}

Loss dropout(Net& net) {
  Linear in = net.register_module("in", Linear(kWidth, 16));
  return [=](const Tensor& x, int rank) mutable {
    torch::manual_seed(5 + static_cast<std::uint64_t>(rank));
    return error_of_sine(F::dropout(in->forward(x)), x);
  };
}

Loss with_another_gradient_dtype(Net& net) {
  const Tensor w = net.register_parameter("w", matrix(torch::kBFloat16));
  w.set_grad_dtype(torch::kFloat);
  return [w](const Tensor& x, int) { return error_of_sine(x.matmul(w.to(torch::kFloat)), x); };
}

Loss with_a_functional_embedding(Net& net) {
  const Tensor w = net.register_parameter("w", matrix());
  return [w](const Tensor& x, int) {
    const auto sparse = F::EmbeddingFuncOptions().sparse(true);
    return error_of_sine(F::embedding(indices_of(x).remainder(kWidth), w, sparse), x);
  };
}

std::vector<Model> all_models() {
  using namespace torch::nn;
  const auto half = [](torch::Dtype dtype) { return [dtype] { return matrix(dtype); }; };
  const auto plain = [] { return matrix(); };
  return {
      {"linear", one(plain, times)},
      {"float64", one(half(torch::kDouble), times), {}, torch::kDouble},
      {"bfloat16", one(half(torch::kBFloat16), times), {}, torch::kBFloat16},
      {"float16", one(half(torch::kHalf), times), {}, torch::kHalf},
      {"complex64", [](Net& n) { return complex_weights(n, torch::kFloat, torch::kComplexFloat); }},
      {"complex128",
       [](Net& n) { return complex_weights(n, torch::kDouble, torch::kComplexDouble); },
       {},
       torch::kDouble},
      {"two dtypes", mixed_dtypes},
      {"tied weights", tied},
      {"nested modules", nested},
      {"a layer used twice", used_twice},
      {"channels-last", channels_last},
      {"a number",
       one([] { return torch::ones({}); }, [](const Tensor& w, const Tensor& x) { return x * w; })},
      {"an empty parameter", one(
                                 [] {
                                   return torch::ones({0, kWidth});
                                 },
                                 [](const Tensor& w, const Tensor& x) {
                                   return torch::cat({w, x * w.sum()});
                                 })},
      {"more than a bucket", one(
                                 [] {
                                   return draw(7, {kWidth, 2000}, torch::kFloat);
                                 },
                                 times)},
      {"a transposed parameter", one([] { return matrix().t(); }, times)},
      {"a parameter with gaps", one(
                                    [] {
                                      return draw(7, {kWidth, 9}, torch::kFloat).narrow(1, 0, 3);
                                    },
                                    times)},
      {"views of a parameter",
       one(plain,
           [](const Tensor& w, const Tensor& x) {
             return x.matmul(w.view({2, -1})[0].view({kWidth, -1})) + w.t().slice(0, 1, 2).sum();
           })},
      {"an expanded parameter",
       one(
           [] {
             return torch::ones({1, kWidth});
           },
           [](const Tensor& w, const Tensor& x) { return x * w.expand_as(x); })},
      {"in place",
       one(plain, [](const Tensor& w, const Tensor& x) { return x.matmul(w).add_(1).relu_(); })},
      {"a norm of weights",
       one(plain,
           [](const Tensor& w, const Tensor& x) { return x.matmul(w / w.norm(2, 0, true)); })},
      {"a function of its own",
       one(plain, [](const Tensor& w, const Tensor& x) { return Square::apply(x.matmul(w)); })},
      {"convolution", around([] { return Conv1d(Conv1dOptions(4, 3, 3)); }, {kBatch, 4, 16})},
      {"convolution by groups",
       around([] { return Conv2d(Conv2dOptions(4, 4, 2).groups(4)); }, {kBatch, 4, 4, 4})},
      {"convolution in space",
       around([] { return Conv3d(Conv3dOptions(1, 2, 2)); }, {kBatch, 1, 4, 4, 4})},
      {"transposed convolution",
       around([] { return ConvTranspose2d(ConvTranspose2dOptions(4, 2, 3).stride(2)); },
              {kBatch, 4, 4, 4})},
      {"batch norm", around([] { return BatchNorm2d(4); }, {kBatch, 4, 4, 4})},
      {"own buffers",
       around([] { return BatchNorm1d(64); }, {kBatch, 64}),
       {.broadcast_buffers = false}},
      {"layer norm", around([] { return LayerNorm(LayerNormOptions({64})); }, {kBatch, 64})},
      {"group norm", around([] { return GroupNorm(GroupNormOptions(2, 4)); }, {kBatch, 4, 16})},
      {"prelu", around([] { return PReLU(PReLUOptions().num_parameters(4)); }, {kBatch, 4, 16})},
      {"bilinear",
       [](Net& net) -> Loss {
         Bilinear layer = net.register_module("layer", Bilinear(kWidth, kWidth, 3));
         return [=](const Tensor& x, int) mutable {
           return error_of_sine(layer->forward(x, x.cos()), x);
         };
       }},
      {"rnn", recurrent([] { return RNN(RNNOptions(kWidth / 2, 5).num_layers(2)); })},
      {"lstm", recurrent([] { return LSTM(LSTMOptions(kWidth / 2, 5).bidirectional(true)); })},
      {"gru", recurrent([] { return GRU(GRUOptions(kWidth / 2, 5)); })},
      {"transformer", attention},
      {"dropout", dropout},
      {"a frozen layer", frozen},
      {"double backward", penalised},
      {"experts", experts, {.find_unused_parameters = true}},
      {"a static graph", used_twice, {.static_graph = true}},
      {"dense embedding",
       [](Net& net) -> Loss {
         Embedding rows = net.register_module("rows", Embedding(10, 6));
         return [=](const Tensor& x, int) mutable {
           return error_of_sine(rows->forward(indices_of(x)), x);
         };
       }},
      {"sparse embedding", sparse(reads)},
      {.name = "a sparse embedding that one rank doesn't use",
       .build = sparse(reads_nothing),
       .options = {.find_unused_parameters = true},
       // PyTorch: "Expected sparse gradient to be defined."
       .build_theirs = sparse(reads_in_vain)},
      {"sparse embedding bag",
       [](Net& net) -> Loss {
         EmbeddingBag rows = net.register_module(
             "rows", EmbeddingBag(EmbeddingBagOptions(10, 6).sparse(true).mode(torch::kSum)));
         return [=](const Tensor& x, int) mutable {
           return error_of_sine(rows->forward(indices_of(x)), x);
         };
       }},
      {.name = "a tied sparse embedding",
       .build = tied_sparse(/*hides=*/false),
       // PyTorch: "Expected variable to have sparse gradient."
       .build_theirs = tied_sparse(/*hides=*/true)},
      {"nothing but a sparse embedding",
       [](Net& net) -> Loss {
         Embedding rows = net.register_module("rows", Embedding(sparse_rows()));
         return [=](const Tensor& x, int) mutable {
           return error_of_sine(rows->forward(indices_of(x)), x);
         };
       }},
      {.name = "accumulation", .build = used_twice, .accumulates = true},
      {.name = "accumulation of experts",
       .build = experts,
       .options = {.find_unused_parameters = true},
       .accumulates = true},
      {.name = "accumulation of a sparse embedding", .build = sparse(reads), .accumulates = true},
      {.name = "accumulation with batch norm",
       .build = around([] { return BatchNorm1d(64); }, {kBatch, 64}),
       .accumulates = true},
      {.name = "accumulation with buffers of one's own",
       .build = around([] { return BatchNorm1d(64); }, {kBatch, 64}),
       .options = {.broadcast_buffers = false},
       .accumulates = true},
      {.name = "create_graph of a sparse embedding",
       .build = [](Net& net) -> Loss {
         Embedding rows = net.register_module("rows", Embedding(sparse_rows()));
         return [=](const Tensor& x, int) mutable {
           return error_of_sine(rows->forward(indices_of(x)), x);
         };
       },
       .refusal = "the gradient of rows.weight has a graph of its own",
       .creates_graph = true},
      {.name = "create_graph",
       .build = used_twice,
       .refusal = "the gradient of layer.bias has a graph of its own",
       .creates_graph = true},
      {.name = "a gradient of another dtype",
       .build = with_another_gradient_dtype,
       .refusal = "the gradient of w is Float, the parameter BFloat16"},
      {.name = "a sparse gradient of no embedding layer",
       .build = with_a_functional_embedding,
       .refusal = "the gradient of w is sparse"},
  };
}

std::shared_ptr<Net> make_net(const std::function<Loss(Net&)>& build, std::uint64_t seed) {
  torch::manual_seed(seed);
  auto net = std::make_shared<Net>();
  net->loss = build(*net);
  return net;
}

Tensor input(const Model& model, int step, int rank) {
  return draw(static_cast<std::uint64_t>(100 * (1 + step) + rank), {kBatch, kWidth}, model.dtype);
}

template <template <typename> class Ddp>
void train(const Model& model, Net& net, Communicator& communicator) {
  DdpOptions options = model.options;
  options.buckets = {.first_bytes = 256, .cap_bytes = 1024};
  Ddp<Net> ddp(net, communicator, options);
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  const int rank = communicator.rank();
  for (int step = 0; step < kNumSteps; ++step) {
    ddp.zero_grad();
    if (model.accumulates) {
      const auto local = ddp.no_sync();
      ddp(input(model, kNumSteps + step, rank), rank).backward();
    }
    ddp(input(model, step, rank), rank).backward({}, std::nullopt, model.creates_graph);
    if (step + 1 < kNumSteps) optimizer.step();  // the last gradients are compared, too
  }
  for (Tensor& parameter : net.parameters()) {
    if (parameter.grad().defined()) parameter.mutable_grad() = parameter.grad().clone();
  }
}

Tensor dense(const Tensor& tensor) { return tensor.is_sparse() ? tensor.to_dense() : tensor; }

// How far the two may be apart; 0: they have the same bits. So it is for one rank and two, where
// both sum the same numbers, and where both divide three numbers first, as with NCCL. The host
// communicator sums first. It rounds sums of 16 bits once. Sparse gradients are always summed
// first.
double tolerance(const Net& net, const Communicator& communicator) {
  if (communicator.size() <= 2) return 0;
  bool has_sparse = false;
  for (const auto& module : net.modules()) {
    has_sparse |= torch_adapter::has_sparse_gradient(*module);
  }
  double limit = communicator.backend() == "nccl" && !has_sparse ? 0 : 1e-12;
  for (const Tensor& parameter : net.parameters()) {
    const torch::Dtype dtype = at::toRealValueType(parameter.scalar_type());
    if (dtype == torch::kFloat && limit > 0) limit = std::max(limit, 1e-5);
    if (dtype == torch::kHalf) limit = std::max(limit, 4e-3);
    if (dtype == torch::kBFloat16) limit = std::max(limit, 3e-2);
  }
  return limit;
}

// `tolerance`: of the distance, against the norm or 1.
void compare(const std::string& what, const Tensor& ours, const Tensor& theirs, double tolerance) {
  expect(ours.defined() == theirs.defined(), what + " is defined on both sides or on none");
  if (!ours.defined()) return;
  expect(ours.is_sparse() == theirs.is_sparse(), what + " is sparse on both sides or on none");
  expect(ours.dtype() == theirs.dtype(), what + " is of one dtype on both sides");
  const Tensor a = dense(ours), b = dense(theirs);
  if (tolerance == 0) return expect(torch::equal(a, b), what + " is the same, bit for bit");
  const auto norm = [](const Tensor& tensor) {
    return tensor.norm().to(torch::kDouble).item<double>();
  };
  const double distance = norm(a.to(torch::kComplexDouble) - b.to(torch::kComplexDouble));
  const double limit = tolerance * std::max(1.0, norm(b.to(torch::kComplexDouble)));
  expect(distance <= limit, concat(what, " is the same, to ", limit, ": ", distance));
}

void check(const Model& model, Communicator& communicator) {
  const std::uint64_t seed = communicator.rank() == 0 ? 1 : 2;  // rank 0's model counts
  const std::shared_ptr<Net> net = make_net(model.build, seed);
  const std::string error =
      error_of([&] { train<DistributedDataParallel>(model, *net, communicator); });
  if (model.refusal != nullptr) return expect_contains(error, model.refusal);
  expect(error.empty(), concat(model.name, ": ", error));

  const std::shared_ptr<Net> theirs =
      make_net(model.build_theirs ? model.build_theirs : model.build, seed);
  try {
    train<PytorchDdp>(model, *theirs, communicator);
  } catch (const c10::Error& refusal) {
    expect(false, concat("PyTorch trains ", model.name, ": ", refusal.what_without_backtrace()));
  }

  const double limit = tolerance(*net, communicator);
  const auto their_parameters = theirs->named_parameters();
  for (const auto& item : net->named_parameters()) {
    const std::string what = concat(model.name, ": ", item.key());
    const Tensor& other = their_parameters[item.key()];
    compare(what, item.value(), other, limit);
    compare(what + "'s gradient", item.value().grad(), other.grad(), limit);
  }
  const auto their_buffers = theirs->named_buffers();
  for (const auto& item : net->named_buffers()) {
    compare(concat(model.name, ": ", item.key()), item.value(), their_buffers[item.key()], limit);
  }
}

// Goes forward a few times, changes the model, and returns the error of the next forward.
std::string error_after(int num_forwards, const std::function<void(Net&)>& change,
                        Communicator& communicator) {
  const Model model{.name = "late", .build = one([] { return matrix(); }, times)};
  const std::shared_ptr<Net> net = make_net(model.build, 1);
  DistributedDataParallel ddp(*net, communicator);
  for (int i = 0; i < num_forwards; ++i) ddp(input(model, 0, 0), 0);
  change(*net);
  return error_of([&] { ddp(input(model, 0, 0), 0); });
}

// These parameters come to a model after it is wrapped.
void check_late_parameters(Communicator& communicator) {
  const auto add = [](Net& net) { net.register_parameter("late", torch::ones({3})); };
  const auto replace = [](Net& net) { net.replace("w", torch::ones({kWidth, kWidth})); };
  const auto add_layer = [](Net& net) { net.register_module("more", Linear(1, 1)); };
  constexpr char kLate[] = " was added or replaced since the model was wrapped";
  for (const int num_forwards : {0, 2, 5}) {
    expect_contains(error_after(num_forwards, add, communicator), concat("parameter late", kLate));
    expect_contains(error_after(num_forwards, replace, communicator), concat("parameter w", kLate));
  }
  // New layers are looked for in some of the forwards.
  for (const int num_forwards : {3, 767}) {
    expect_contains(error_after(num_forwards, add_layer, communicator),
                    concat("parameter more.weight", kLate));
  }
}

void check_late_frozen_parameters(Communicator& communicator) {
  const Model model{.name = "frozen", .build = one([] { return matrix(); }, times)};
  const std::shared_ptr<Net> net = make_net(model.build, 1);
  DistributedDataParallel ddp(*net, communicator);
  const auto teacher = net->register_module("teacher", torch::nn::Linear(2, 2));
  for (const Tensor& each : teacher->parameters()) each.set_requires_grad(false);
  ddp(input(model, 0, 0), 0);
  net->unregister_module("teacher");
  ddp(input(model, 0, 0), 0);  // the second forward looks at all layers: this one is forgotten
  teacher->weight.set_requires_grad(true);
  ddp(input(model, 0, 0), 0);
  const Tensor late = net->register_parameter("late", torch::ones({3}), /*requires_grad=*/false);
  ddp(input(model, 0, 0), 0);
  late.set_requires_grad(true);
  expect_contains(error_of([&] { ddp(input(model, 0, 0), 0); }),
                  "parameter late requires a gradient now");
}

void check_cast_sparse_parameters(Communicator& communicator) {
  const Model model{.name = "cast", .build = [](Net& net) -> Loss {
                      auto rows = net.register_module("rows", torch::nn::Embedding(sparse_rows()));
                      return [rows](const Tensor& x, int) mutable {
                        return error_of_sine(rows->forward(indices_of(x)), x);
                      };
                    }};
  const std::shared_ptr<Net> net = make_net(model.build, 1);
  DistributedDataParallel ddp(*net, communicator);
  net->to(torch::kDouble);
  expect_contains(error_of([&] { ddp(input(model, 0, 0), 0); }),
                  "parameter rows.weight is Double [10, 6] on cpu now, it was wrapped as Float");
}

void check_resized_parameters(Communicator& communicator) {
  const Model model{.name = "resized", .build = one([] { return matrix(); }, times)};
  const std::shared_ptr<Net> net = make_net(model.build, 1);
  DistributedDataParallel ddp(*net, communicator);
  net->parameters().front().set_data(torch::ones({kWidth, 2 * kWidth}));
  expect_contains(error_of([&] { ddp(input(model, 0, 0), 0); }),
                  "[8, 16] on cpu now, it was wrapped as Float [8, 8]");
}

}  // namespace

int program(int, char**) {
  torch::set_num_threads(1);
  return run_worker("models_worker", "", [](Communicator& communicator) {
    // Two of the three ranks are a pair, the third is alone.
    const auto few = communicator.split(
        communicator.rank() < 2 ? std::vector{0, 1} : std::vector{2}, {.name = "few"});
    LikeNccl like_nccl(communicator);
    const std::vector<Model> models = all_models();
    for (Communicator* group : {few.get(), &communicator, static_cast<Communicator*>(&like_nccl)}) {
      for (const Model& model : models) check(model, *group);
    }
    check_late_parameters(communicator);
    check_late_frozen_parameters(communicator);
    check_resized_parameters(communicator);
    check_cast_sparse_parameters(communicator);
    std::cout << models.size() << " models\n";
    return true;
  });
}

}  // namespace models_worker
