// SPDX-License-Identifier: Apache-2.0
// One rank of modes_test.py and hook_modes_test.py. Each of DistributedDataParallel's modes is a
// training, whose twin is in modes_twin.py.
//
//   ddp_modes_worker OUT CASE…
//
// trains each case and writes OUT.<case>.<dtype>.<rank>. A case CASE+COMPRESSION has only float32,
// and that hook. OUT.<case>.plan gets the parameters' numbers, a line per bucket, at first and in
// the end. OUT.<case>.q gets PowerSGD's first Qs.
//
//   ddp_modes_worker errors
//
// tries things that must be refused, and exits with 0 if they are.
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <string>

#include "common/error.h"
#include "common/text.h"
#include "tests/worker_sdk/torch/worker_program.h"
#include "worker_sdk/ddp/hooks/compression.h"
#include "worker_sdk/torch/distributed_data_parallel.h"

using namespace ddprun;
using namespace ddprun::testing;

namespace ddp_modes_worker {
namespace {

constexpr int kNumSteps = 9;
constexpr std::int64_t kBatchSize = 4, kWidth = 16;

// A part of a net whose activations backward computes anew, with a backward inside it.
struct Checkpointed : torch::autograd::Function<Checkpointed> {
  using Part = std::function<torch::Tensor(torch::Tensor)>;
  static torch::Tensor forward(torch::autograd::AutogradContext* context, torch::Tensor input,
                               Part* part) {
    context->saved_data["part"] = reinterpret_cast<std::int64_t>(part);
    context->save_for_backward({input});
    return (*part)(input);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const torch::AutoGradMode with_gradients(true);
    torch::Tensor input = context->get_saved_variables()[0].detach().requires_grad_();
    (*reinterpret_cast<Part*>(context->saved_data["part"].toInt()))(input).backward(gradients[0]);
    return {input.grad(), torch::Tensor()};
  }
};

// A net with optional parts. A forward takes a letter for each of them: n(orm), a, b, c, s: a once
// more, k: the same checkpointed. The loss uses the first output. The second output needn't be
// used.
struct BranchNetImpl : torch::nn::Module {
  std::tuple<torch::Tensor, std::optional<torch::Tensor>> forward(torch::Tensor x,
                                                                  const std::string& use) {
    torch::Tensor h = torch::tanh(trunk(x));
    for (const char part : use) {
      if (part == 'n') h = norm(h);
      if (part == 'a' || part == 's') h = torch::tanh(a(h));
      if (part == 'b') h = torch::tanh(b(h));
      if (part == 'c') h = h + c(h);
      if (part == 'k') h = Checkpointed::apply(h, &checkpointed);
    }
    std::optional<torch::Tensor> other;
    if (use.find('o') != std::string::npos) other = b(h);
    return {head(h).squeeze(1), other};
  }
  using Linear = torch::nn::Linear;
  Linear trunk = register_module("trunk", Linear(8, kWidth));
  torch::nn::BatchNorm1d norm = register_module(
      "norm", torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(kWidth).affine(false)));
  Linear a = register_module("a", Linear(kWidth, kWidth));
  Linear b = register_module("b", Linear(kWidth, kWidth));
  Linear c = register_module("c", Linear(kWidth, kWidth));
  Linear head = register_module("head", Linear(kWidth, 1));
  Checkpointed::Part checkpointed = [this](torch::Tensor x) { return torch::tanh(a(x)); };
};
TORCH_MODULE(BranchNet);

// The numbers by epoch and rank. Rank 2 has no step in the first epoch.
constexpr int kJoinSteps[2][4] = {{9, 5, 0, 7}, {5, 9, 7, 3}};

struct Case {
  DdpOptions options{};
  int accumulate = 1;
  bool one_batch = false;  // the parts of an accumulation are one batch
  int zero_every = 1;
  bool joins = false;  // the ranks have uneven inputs, see kJoinSteps
  JoinOptions join{};
  double momentum = 0.9;
  // The parts that rank `r`'s forward number `part` of step `s` takes.
  std::function<std::string(int s, int part, int r)> use = [](int, int, int) { return "nabc"; };
};

std::map<std::string, Case> all_cases() {
  const auto varying = [](int s, int, int r) {
    return std::vector<std::string>{"na", "nb", "nab", "n"}[static_cast<std::size_t>((s + r) % 4)];
  };
  const auto fixed = [](int, int, int r) { return std::string(r % 2 == 0 ? "nas" : "nb"); };
  std::map<std::string, Case> cases;
  cases["unused"] = {.options = {.find_unused_parameters = true}, .use = varying};
  cases["unused_keep"] = {
      .options = {.find_unused_parameters = true}, .zero_every = 3, .use = varying};
  cases["unused_output"] = {.options = {.find_unused_parameters = true},
                            .use = [](int s, int, int r) { return (s + r) % 3 ? "nao" : "nab"; }};
  cases["unused_accumulate"] = {
      .options = {.find_unused_parameters = true}, .accumulate = 2, .use = [](int s, int p, int r) {
        return p == 0 ? "na" : (s + r) % 2 ? "nb" : "n";
      }};
  cases["static"] = {.options = {.static_graph = true}, .use = fixed};
  cases["static_accumulate"] = {.options = {.static_graph = true}, .accumulate = 2, .use = fixed};
  cases["checkpointed"] = {.options = {.static_graph = true},
                           .use = [](int, int, int) { return "nkk"; }};
  cases["ignored"] = {.options = {.ignored = {"a.weight", "norm.running_mean"}}};
  cases["own_buffers"] = {.options = {.broadcast_buffers = false}, .accumulate = 2};
  cases["accumulate"] = {.accumulate = 3, .use = [](int, int, int) { return "abc"; }};
  cases["big_batch"] = cases["accumulate"];
  cases["big_batch"].one_batch = true;
  cases["join"] = {.joins = true};
  cases["join_own_buffers"] = {.options = {.broadcast_buffers = false}, .joins = true};
  cases["join_unused"] = {
      .options = {.find_unused_parameters = true}, .joins = true, .momentum = 0, .use = varying};
  cases["join_static"] = {.options = {.static_graph = true}, .joins = true, .use = fixed};
  cases["join_accumulate"] = {.accumulate = 2, .joins = true};
  cases["join_effective"] = {.joins = true, .join = {.divide_by_initial_world_size = false}};
  cases["join_throw"] = {.joins = true, .join = {.throw_on_early_termination = true}};
  return cases;
}

// The numbers of a seed, which the twin draws, too.
torch::Tensor draw(std::uint64_t seed, at::IntArrayRef sizes, torch::Dtype dtype) {
  torch::manual_seed(seed);
  return torch::randn(sizes, torch::kDouble).to(dtype);
}

BranchNet make_net(int rank, torch::Dtype dtype) {
  const torch::NoGradGuard no_grad;
  BranchNet net;
  net->to(dtype);
  // The ranks start with different weights.
  std::uint64_t seed = 1000 * (1 + static_cast<std::uint64_t>(rank));
  for (torch::Tensor& parameter : net->parameters()) {
    parameter.copy_(draw(seed++, parameter.sizes(), dtype) * 0.3);
  }
  net->norm->running_mean.fill_(0.01 * rank);
  return net;
}

template <typename Ddp>
class Training {
 public:
  Training(const Case& what, Ddp& ddp, int rank, torch::Dtype dtype)
      : case_(what),
        ddp_(ddp),
        rank_(rank),
        dtype_(dtype),
        optimizer_(ddp.module().parameters(),
                   torch::optim::SGDOptions(0.02).momentum(what.momentum)) {}

  void step(int number) {
    if (number % case_.zero_every == 0) ddp_.zero_grad();
    if (case_.one_batch) {
      std::vector<torch::Tensor> inputs;
      for (int part = 0; part < case_.accumulate; ++part) inputs.push_back(input(number, part));
      loss(torch::cat(inputs), case_.use(number, 0, rank_)).backward();
    } else {
      for (int part = 0; part + 1 < case_.accumulate; ++part) {
        const auto local = ddp_.no_sync();
        backward(number, part);
      }
      backward(number, case_.accumulate - 1);
    }
    optimizer_.step();
  }

 private:
  torch::Tensor input(int number, int part) {
    const int seed = 10000 + 1000 * rank_ + 10 * number + part;
    return draw(static_cast<std::uint64_t>(seed), {kBatchSize, 8}, dtype_);
  }
  torch::Tensor loss(const torch::Tensor& x, const std::string& use) {
    return torch::mse_loss(std::get<0>(ddp_(x, use)), x.sin().sum(1));
  }
  void backward(int number, int part) {
    (loss(input(number, part), case_.use(number, part, rank_)) / case_.accumulate).backward();
  }

  const Case& case_;
  Ddp& ddp_;
  const int rank_;
  const torch::Dtype dtype_;
  torch::optim::SGD optimizer_;
};

// Saves parameters, buffers, then gradients as float64 (NaN: there is none).
void save(const BranchNet& net, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  std::vector<torch::Tensor> tensors = net->parameters();
  for (const torch::Tensor& buffer : net->buffers()) tensors.push_back(buffer);
  for (const torch::Tensor& parameter : net->parameters()) {
    const torch::Tensor gradient = parameter.grad();
    tensors.push_back(gradient.defined() ? gradient : torch::full_like(parameter, NAN));
  }
  for (const torch::Tensor& tensor : tensors) {
    const torch::Tensor values = tensor.detach().to(torch::kDouble).contiguous();
    file.write(static_cast<const char*>(values.const_data_ptr()),
               static_cast<std::streamsize>(values.nbytes()));
  }
  expect(bool(file), "the state is written");
}

template <typename Ddp>
void train_joined(const Case& what, Ddp& ddp, Training<Ddp>& training, Communicator& communicator) {
  for (int epoch = 0; epoch < 2; ++epoch) {
    auto join = ddp.join(what.join);
    const int num_steps = kJoinSteps[epoch][communicator.rank()];
    for (int step = 0; step < num_steps; ++step) training.step(50 * epoch + step);
    const JoinResult result = join.finish();
    const int* first = kJoinSteps[epoch];
    const int longest = *std::max_element(first, first + communicator.size());
    expect(first[result.source_rank] == longest, "the source of the model ran out last");
    expect(result.num_shadowed == static_cast<std::uint64_t>(longest - num_steps),
           "a rank shadows the steps that the others have more");
  }
}

void save_plan(const DdpBase& ddp, std::ofstream& file) {
  for (const std::vector<std::size_t>& bucket : ddp.bucket_plan()) {
    for (const std::size_t index : bucket) file << index << " ";
    file << "\n";
  }
  file << "\n";
}

void save_first_qs(CommHook& hook, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  for (const HookTensor& tensor : hook.state()) {
    if (!tensor.name.starts_with("powersgd.q.")) continue;
    file.write(static_cast<const char*>(tensor.view.data),
               static_cast<std::streamsize>(tensor.view.size_bytes()));
  }
}

void train(const Case& what, DistributedDataParallel<BranchNetImpl>& ddp,
           Communicator& communicator, torch::Dtype dtype) {
  Training training(what, ddp, communicator.rank(), dtype);
  if (!what.joins) {
    for (int step = 0; step < kNumSteps; ++step) training.step(step);
    return;
  }
  const std::string error = error_of([&] { train_joined(what, ddp, training, communicator); });
  if (what.join.throw_on_early_termination) {
    expect_contains(error, concat("rank ", communicator.size() > 2 ? 2 : 1,
                                  " has no more inputs, other ranks have"));
  } else {
    expect(error.empty(), error);
  }
  ddp.zero_grad();
}

void run_case(const Case& what, Communicator& communicator, torch::Dtype dtype,
              const std::string& path) {
  BranchNet net = make_net(communicator.rank(), dtype);
  DdpOptions options = what.options;
  options.buckets = {.first_bytes = 256, .cap_bytes = 1024};
  DistributedDataParallel ddp(*net, communicator, options);
  train(what, ddp, communicator, dtype);
  save(net, path);
}

void run_with_hook(const Case& what, const std::string& compression, Communicator& communicator,
                   const std::string& path) {
  const int rank = communicator.rank();
  BranchNet net = make_net(rank, torch::kFloat);
  DdpOptions options = what.options;
  options.buckets = {.first_bytes = 256, .cap_bytes = 1024};
  options.comm_hook = make_comm_hook(parse_compression(compression));
  DistributedDataParallel ddp(*net, communicator, options);
  std::ofstream plan(rank == 0 ? path + ".plan" : "/dev/null");
  save_plan(ddp, plan);
  if (rank == 0) save_first_qs(*options.comm_hook, path + ".q");
  train(what, ddp, communicator, torch::kFloat);
  save_plan(ddp, plan);
  expect(ddp.traffic().sent_bytes < ddp.traffic().uncompressed_bytes, "it is compressed");
  save(net, concat(path, ".float32.", rank));
}

void run_cases(Communicator& communicator, const std::vector<std::string>& arguments) {
  const std::map<std::string, Case> cases = all_cases();
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    if (const std::size_t plus = arguments[i].find('+'); plus != std::string::npos) {
      run_with_hook(cases.at(arguments[i].substr(0, plus)), arguments[i].substr(plus + 1),
                    communicator, concat(arguments[0], ".", arguments[i]));
      continue;
    }
    for (const auto& [name, dtype] :
         {std::pair("float64", torch::kDouble), std::pair("float32", torch::kFloat)}) {
      run_case(cases.at(arguments[i]), communicator, dtype,
               concat(arguments[0], ".", arguments[i], ".", name, ".", communicator.rank()));
    }
  }
}

void check_errors(Communicator& communicator) {
  const int rank = communicator.rank();
  const torch::Tensor x = torch::ones({kBatchSize, 8});
  {
    BranchNet net;
    DistributedDataParallel ddp(*net, communicator, {.static_graph = true});
    const auto step = [&](const std::string& use) {
      ddp.zero_grad();
      std::get<0>(ddp(x, use)).sum().backward();
    };
    step("nkk");
    step("nkk");
    expect_contains(error_of([&] { step("nkb"); }), "the graph has changed: b.");
  }
  {
    BranchNet net;
    DistributedDataParallel ddp(*net, communicator, {.static_graph = true});
    std::get<0>(ddp(x, "nab")).sum().backward();
    expect_contains(error_of([&] { std::get<0>(ddp(x, "na")).sum().backward(); }),
                    concat("no gradient for b.weight, b.bias on rank ", rank,
                           ": the graph has changed, for they got one in the first iteration"));
  }
  {
    BranchNet net;
    DistributedDataParallel ddp(*net, communicator);
    auto join = ddp.join();
    expect_contains(error_of([&] { const auto second = ddp.join(); }), "the one before");
    expect_contains(error_of([&] { ddp.register_comm_hook(nullptr); }), "not within a join");
    join.finish();
    expect_contains(error_of([&] { join.finish(); }), "finish() was called twice");
  }
  {
    BranchNet net;
    DistributedDataParallel ddp(*net, communicator);
    const auto join = ddp.join();
    std::optional<DdpBase::NoSync> local;
    if (rank == 0) local.emplace(ddp);
    expect_contains(error_of([&] { ddp(x, "nabc"); }),
                    concat("rank ", communicator.size() - 1,
                           " averages the gradients of this forward, rank 0 does not"));
  }
  BranchNet net;
  expect_contains(
      error_of([&] { DistributedDataParallel ddp(*net, communicator, {.ignored = {"a.wait"}}); }),
      "DdpOptions::ignored has \"a.wait\": the model has no parameter or buffer of that name");
  const bool last = rank == communicator.size() - 1;
  expect_contains(error_of([&] {
                    DistributedDataParallel ddp(*net, communicator,
                                                {.find_unused_parameters = last});
                  }),
                  "option find_unused_parameters is on, on rank 0 it is off");
}

}  // namespace

int program(int argc, char** argv) {
  torch::set_num_threads(1);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return run_worker("ddp_modes_worker", "", [&](Communicator& communicator) {
    if (arguments.at(0) == "errors") {
      check_errors(communicator);
    } else {
      run_cases(communicator, arguments);
    }
    return true;
  });
}

}  // namespace ddp_modes_worker
