// SPDX-License-Identifier: Apache-2.0
// One rank of zero_test.py:
//
//   zero_worker equal|handover|clip|scaler|memory|refusals|mismatch|lost
//
// checks, and exits with 0 if all holds (mismatch, lost: prints the error);
//
//   zero_worker resume STAGE DIR FIRST LAST OUT
//
// trains steps FIRST … LAST - 1 in float64, from the checkpoint in DIR if FIRST > 0. It saves one
// there, and writes the parameters to OUT.<rank>.
#include <torch/torch.h>

#include <csignal>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/error.h"
#include "common/text.h"
#include "tests/worker_sdk/torch/worker_program.h"
#include "worker_sdk/ddp/hooks/compression.h"
#include "worker_sdk/torch/checkpoint.h"
#include "worker_sdk/torch/distributed_data_parallel.h"
#include "worker_sdk/torch/flat_optimizer.h"
#include "worker_sdk/torch/grad_scaler.h"
#include "worker_sdk/torch/gradient_clipping.h"
#include "worker_sdk/torch/sharded_optimizer.h"

using namespace ddprun;
using namespace ddprun::testing;

namespace zero_worker {
namespace {

constexpr int kNumSteps = 20;
constexpr BucketLimits kSmallBuckets{.first_bytes = 512, .cap_bytes = 2048};
constexpr ZeroStage kStages[] = {ZeroStage::kOptimizer, ZeroStage::kGradients};

// The sizes are odd, so that parts begin within parameters. A convolution is in channels-last.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    const torch::NoGradGuard no_grad;
    conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  torch::Tensor forward(torch::Tensor x) {
    return fc2(torch::tanh(fc1(torch::relu(conv(x)).flatten(1))));
  }
  torch::nn::Conv2d conv = register_module("conv", torch::nn::Conv2d(3, 5, 3));
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(45, 29));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(29, 7));
};
TORCH_MODULE(Net);

// Weights have decay, biases have none.
std::vector<ParameterGroup> groups_of(const torch::nn::Module& net, const UpdateRule& rule) {
  std::vector<ParameterGroup> groups(2, {{}, rule});
  std::visit([](auto& each) { each.weight_decay = 0; }, groups[1].rule);
  for (const NamedTensor& each : trainable_parameters(net)) {
    groups[each.tensor.dim() < 2].parameters.push_back(each);
  }
  return groups;
}

// A net with the optimiser of a ZeRO stage.
struct Training {
  Training(Communicator& communicator, ZeroStage stage, const UpdateRule& rule,
           at::ScalarType wanted)
      : dtype(wanted) {
    torch::manual_seed(5 + communicator.rank());  // rank 0's numbers count
    net = Net();
    net->to(dtype);
    ddp.emplace(*net, communicator, DdpOptions{.buckets = kSmallBuckets, .zero = stage});
    if (stage == ZeroStage::kOff) {
      flat.emplace(groups_of(*net, rule), &*ddp);
    } else {
      sharded.emplace(groups_of(*net, rule), *ddp);
    }
  }

  // The loss of `count` of the step's 8 rows, from `first` on.
  torch::Tensor loss(int step, std::int64_t first, std::int64_t count) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(100 + static_cast<unsigned>(step));
    const auto draw = [&](at::IntArrayRef shape) {
      return torch::randn(shape, generator, torch::kDouble).narrow(0, first, count).to(dtype);
    };
    const torch::Tensor input = draw({8, 3, 5, 5}), target = draw({8, 7});
    return torch::mse_loss((*ddp)(input), target);
  }

  void zero_grad() { flat ? flat->zero_grad() : sharded->zero_grad(); }
  void update() { flat ? flat->step() : sharded->step(); }
  void set_lr(double lr) { flat ? flat->set_lr(lr) : sharded->set_lr(lr); }
  std::vector<at::Tensor> gradients() { return flat ? flat->gradients() : sharded->gradients(); }
  at::Tensor clip(const ClipOptions& options) {
    return flat ? clip_gradient_norm(flat->gradients(), options)
                : sharded->clip_gradient_norm(options);
  }

  // Each rank has rows of its own, and another row in each part.
  void step(int number, Communicator& communicator, int accumulate = 1) {
    zero_grad();
    for (int part = 0; part < accumulate; ++part) {
      std::optional<DdpBase::NoSync> local;
      if (part + 1 < accumulate) local.emplace(*ddp);
      const int row = (2 * communicator.rank() + part) % 8;
      loss(number, row, 1).backward();
    }
    set_lr(0.01 / (1 + number));
    update();
  }

  at::ScalarType dtype;
  Net net = nullptr;
  std::optional<DistributedDataParallel<NetImpl>> ddp;
  std::optional<FlatOptimizer> flat;
  std::optional<ShardedOptimizer> sharded;
};

void expect_same(Training& ours, Training& theirs, const std::string& what, double tolerance = 0) {
  const auto here = ours.net->named_parameters(), there = theirs.net->named_parameters();
  for (const auto& item : here) {
    const torch::Tensor& other = there[item.key()];
    const double distance = (item.value() - other).norm().item<double>();
    expect(tolerance == 0 ? torch::equal(item.value(), other)
                          : distance <= tolerance * other.norm().item<double>(),
           concat(what, ": ", item.key(), " is DDP's; the distance is ", distance));
  }
}

const std::map<std::string, UpdateRule> kRules = {
    {"sgd", SgdRule{}},
    {"momentum", SgdRule{.momentum = 0.9, .dampening = 0.1, .weight_decay = 0.01}},
    {"adam", AdamRule{.weight_decay = 0.1, .amsgrad = true}},
    {"adamw", AdamWRule{.weight_decay = 0.1}}};

void run_equal(Communicator& communicator) {
  for (const auto& [name, rule] : kRules) {
    for (const at::ScalarType dtype : {torch::kFloat, torch::kDouble}) {
      const int accumulate = name == "adamw" ? 3 : 1;
      Training plain(communicator, ZeroStage::kOff, rule, dtype);
      std::vector<std::unique_ptr<Training>> sharded;
      for (const ZeroStage stage : kStages) {
        sharded.push_back(std::make_unique<Training>(communicator, stage, rule, dtype));
      }
      const torch::Tensor before = plain.net->fc1->weight.detach().clone();
      for (int step = 0; step < kNumSteps; ++step) {
        plain.step(step, communicator, accumulate);
        for (const auto& each : sharded) each->step(step, communicator, accumulate);
      }
      expect(!torch::equal(before, plain.net->fc1->weight), "it was trained");
      for (std::size_t i = 0; i < sharded.size(); ++i) {
        expect_same(*sharded[i], plain, concat(name, ", ", dtype, ", stage ", i + 1));
        expect(sharded[i]->ddp->bucket_plan().size() > 2, "there are several buckets");
        for (const torch::Tensor& each : sharded[i]->net->parameters()) {
          expect(!each.grad().defined(), "no parameter has a gradient after a backward");
        }
        const IterationTrace& trace = sharded[i]->ddp->trace();
        expect(trace.buckets.front().launched < trace.backward_end,
               "the first bucket leaves before backward ends");
      }
    }
  }
}

std::vector<NamedState> copy_of(const std::vector<NamedState>& state) {
  std::vector<NamedState> copies;
  for (const NamedState& each : state) {
    copies.push_back({each.parameter, each.name, each.tensor.clone()});
  }
  return copies;
}

void hand_over(Training& from, Training& to) {
  const torch::NoGradGuard no_grad;
  const auto old = from.net->named_parameters();
  for (const auto& item : to.net->named_parameters()) item.value().copy_(old[item.key()]);
  const std::vector<NamedState> state =
      from.flat ? copy_of(from.flat->state()) : from.sharded->state();
  if (to.sharded) return to.sharded->load_state(state);
  const std::vector<NamedState> places = to.flat->state();
  expect(places.size() == state.size(), "as much state");
  for (std::size_t i = 0; i < places.size(); ++i) {
    expect(places[i].parameter == state[i].parameter && places[i].name == state[i].name,
           "state in FlatOptimizer's order");
    places[i].tensor.copy_(state[i].tensor);
  }
}

void run_handover(Communicator& communicator) {
  const UpdateRule rule = AdamWRule{.weight_decay = 0.1};
  Training whole(communicator, ZeroStage::kOff, rule, torch::kFloat);
  std::vector<std::unique_ptr<Training>> legs;
  for (const ZeroStage stage :
       {ZeroStage::kOff, ZeroStage::kOptimizer, ZeroStage::kGradients, ZeroStage::kOff}) {
    legs.push_back(std::make_unique<Training>(communicator, stage, rule, torch::kFloat));
  }
  for (int step = 0; step < kNumSteps; ++step) whole.step(step, communicator);
  for (std::size_t leg = 0; leg < legs.size(); ++leg) {
    if (leg > 0) hand_over(*legs[leg - 1], *legs[leg]);
    for (int i = 0; i < 5; ++i) legs[leg]->step(static_cast<int>(leg) * 5 + i, communicator);
  }
  expect_same(*legs.back(), whole, "DDP, ZeRO-1, ZeRO-2, DDP");
  std::size_t i = 0;
  const std::vector<NamedState> there = whole.flat->state();
  for (const NamedState& each : legs.back()->flat->state()) {
    expect(torch::equal(each.tensor, there[i++].tensor), "the state is as without a break");
  }
}

void run_clip(Communicator& communicator) {
  for (const double norm_type : {1.0, 2.0, static_cast<double>(INFINITY)}) {
    const UpdateRule rule = AdamRule{.weight_decay = 0.1};
    for (const ZeroStage stage : kStages) {
      Training ours(communicator, stage, rule, torch::kDouble);
      Training theirs(communicator, ZeroStage::kOff, rule, torch::kDouble);
      for (int step = 0; step < 5; ++step) {
        double norms[2] = {};
        int side = 0;
        for (Training* each : {&ours, &theirs}) {
          each->zero_grad();
          each->loss(step, communicator.rank(), 1).backward();
          // Clipping halves the gradients in the first steps, and leaves them alone in the last
          // one.
          const double limit = step == 4 ? 1e9 : 0.1;
          norms[side++] = each->clip({.max_norm = limit, .norm_type = norm_type}).item<double>();
          each->update();
        }
        expect(std::abs(norms[0] - norms[1]) <= 1e-12 * norms[1] && norms[1] > 0.1,
               concat("norms are the same: ", norms[0], ", DDP's ", norms[1]));
      }
      expect_same(ours, theirs, concat("clipped, order ", norm_type), 1e-12);
    }
  }
  Training ours(communicator, ZeroStage::kGradients, SgdRule{}, torch::kFloat);
  ours.loss(0, 0, 1).backward();
  expect_contains(error_of([&] { ours.clip({.max_norm = -1}); }), "max_norm is -1");
  expect_contains(error_of([&] { ours.clip({.norm_type = 0}); }), "norm_type is 0");
  ours.zero_grad();
  (ours.loss(0, 0, 1) * INFINITY).backward();
  expect_contains(error_of([&] { ours.clip({.error_if_nonfinite = true}); }), "can't be clipped");
  // A rank that clips alone hears that all ranks do.
  const std::vector<int> alone{communicator.rank()};
  const auto pair = communicator.split(communicator.rank() < 2 ? std::vector<int>{0, 1} : alone,
                                       {.name = "pair"});
  if (communicator.rank() > 1) return;
  Training of_pair(*pair, ZeroStage::kGradients, SgdRule{}, torch::kFloat);
  of_pair.loss(0, 0, 1).backward();
  if (communicator.rank() == 0) {
    expect_contains(error_of([&] { of_pair.clip({}); }), "; here ranks add up their shards' norm");
  } else {
    error_of([&] { pair->barrier(); });
  }
}

// One rank's part has an overflow. All ranks leave the update out, ours without a read.
void check_scaler(Communicator& communicator, ZeroStage stage, const UpdateRule& rule,
                  at::ScalarType dtype) {
  Training ours(communicator, stage, rule, dtype);
  Training theirs(communicator, ZeroStage::kOff, rule, dtype);
  GradScaler our_scaler(c10::kCPU, &communicator, {.growth_interval = 2});
  GradScaler their_scaler(c10::kCPU, &communicator, {.growth_interval = 2});
  const auto backward = [&](Training& each, GradScaler& scaler, int step) {
    each.zero_grad();
    torch::Tensor loss = each.loss(step, communicator.rank(), 1);
    // Makes one parameter's gradient infinite. Some ranks have no part of that parameter.
    if (step == 2) loss = loss + each.net->fc2->bias.sum() * INFINITY;
    scaler.scale(loss).backward();
  };
  for (int step = 0; step < 6; ++step) {
    backward(ours, our_scaler, step);
    ours.sharded->step(our_scaler.unscale_async(ours.gradients()));
    our_scaler.update();
    backward(theirs, their_scaler, step);
    const bool good = their_scaler.unscale(theirs.gradients());
    expect(good == (step != 2), "every rank knows of the overflow");
    if (good) theirs.update();
    their_scaler.update();
  }
  expect(our_scaler.current_scale() == their_scaler.current_scale(), "the scales are the same");
  expect_same(ours, theirs, "with a scaler", 1e-6);
  for (const NamedState& each : ours.sharded->state()) {
    if (each.name != "step") continue;
    expect(each.tensor.item<float>() == 5, each.parameter + " has had five updates");
  }
}

void run_scaler(Communicator& communicator) {
  for (const ZeroStage stage : kStages) {
    check_scaler(communicator, stage, SgdRule{.momentum = 0.9}, torch::kFloat);
    check_scaler(communicator, stage, AdamWRule{}, torch::kDouble);
  }
}

// A net of wide layers. It reports the bytes of gradients that autograd holds while backward runs.
struct MlpImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& layer : *layers) {
      x = torch::tanh(layer->as<torch::nn::Linear>()->forward(x));
      if (torch::GradMode::is_enabled()) {
        x.register_hook([this](const torch::Tensor&) {
          std::size_t held = 0;
          for (const torch::Tensor& each : parameters()) {
            if (each.grad().defined()) held += each.grad().nbytes();
          }
          peak = std::max(peak, held);
        });
      }
    }
    return x;
  }
  MlpImpl() {
    for (int i = 0; i < 12; ++i) layers->push_back(torch::nn::Linear(128, 128));
  }
  torch::nn::ModuleList layers = register_module("layers", torch::nn::ModuleList());
  std::size_t peak = 0;
};
TORCH_MODULE(Mlp);

void run_memory(Communicator& communicator) {
  constexpr std::size_t kLayer = (128 * 128 + 128) * 4, kAll = 12 * kLayer;
  const auto world = static_cast<std::size_t>(communicator.size());
  constexpr BucketLimits kBuckets{.first_bytes = kLayer, .cap_bytes = kLayer};
  for (const ZeroStage stage : {ZeroStage::kOff, ZeroStage::kOptimizer, ZeroStage::kGradients}) {
    Mlp net;
    DistributedDataParallel ddp(*net, communicator, {.buckets = kBuckets, .zero = stage});
    std::optional<FlatOptimizer> flat;
    std::optional<ShardedOptimizer> sharded;
    std::vector<ParameterGroup> groups = {{trainable_parameters(*net), AdamWRule{}}};
    if (stage == ZeroStage::kOff) {
      flat.emplace(groups, &ddp);
    } else {
      sharded.emplace(groups, ddp);
    }
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      ddp(torch::ones({4, 128})).square().sum().backward();
      flat ? flat->step() : sharded->step();
    }
    const std::size_t held = ddp.gradient_bytes();
    std::cout << "stage " << to_string(stage) << ": gradients " << held << ", autograd's "
              << net->peak << std::endl;
    if (stage == ZeroStage::kOff) {
      expect(net->peak >= 11 * kLayer && held >= kAll, "plain DDP holds all gradients");
      continue;
    }
    // There are two states, and each part is padded to 64 bytes.
    expect(sharded->state_bytes() <= 2 * kAll / world + 12 * 2 * 64, "1 / W of the state");
    expect(sharded->state_bytes() >= 2 * kAll / world, "and no less");
    if (stage == ZeroStage::kOptimizer) continue;
    expect(held <= kAll / world + 2 * kLayer + 14 * 64 * world,
           "1 / W of the gradients, two buckets");
    expect(net->peak <= 2 * kLayer, concat("autograd holds ", net->peak, " bytes of gradients"));
  }
}

void run_refusals(Communicator& communicator) {
  const torch::Tensor input = torch::ones({2, 4});
  const auto wrap = [&](DdpOptions options) {
    torch::nn::Linear net(4, 4);
    options.zero = ZeroStage::kOptimizer;
    DistributedDataParallel ddp(*net, communicator, options);
  };
  expect_contains(error_of([&] { wrap({.comm_hook = make_comm_hook(parse_compression("fp16"))}); }),
                  "not with comm_hook");
  expect_contains(error_of([&] { wrap({.find_unused_parameters = true}); }),
                  "not with find_unused_parameters");
  expect_contains(error_of([&] { wrap({.static_graph = true}); }), "not with static_graph");
  for (const ZeroStage stage : kStages) {
    torch::nn::Linear net(4, 4), alone(2, 2);
    DistributedDataParallel ddp(*net, communicator, {.zero = stage});
    const std::vector<ParameterGroup> groups = {{trainable_parameters(*net), AdamWRule{}}};
    expect_contains(error_of([&] { ddp(input); }), "needs a ShardedOptimizer");
    expect_contains(error_of([&] { FlatOptimizer(groups, &ddp); }), "use a ShardedOptimizer");
    expect_contains(error_of([&] { (void)ddp.join(); }), "join: not with DdpOptions::zero");
    expect_contains(error_of([&] {
                      ddp.set_gradient_order({"weight", "bias"});
                    }),
                    "set_gradient_order: not with");
    expect_contains(error_of([&] { ddp.register_comm_hook(nullptr); }),
                    "not with DdpOptions::zero");
    expect_contains(error_of([&] {
                      ShardedOptimizer({{trainable_parameters(*alone), AdamWRule{}}}, ddp);
                    }),
                    "the gradient of weight is not averaged");
    ShardedOptimizer optimizer(groups, ddp);
    expect_contains(error_of([&] { ShardedOptimizer(groups, ddp); }), "there is one");
    expect_contains(error_of([&] { optimizer.set_lr(-1); }), "lr is -1");

    ddp(input).sum().backward();
    expect_contains(error_of([&] { ddp(input); }), "averages of the backward before");
    ddp.zero_grad();
    optimizer.step();  // there is nothing to do
    expect(optimizer.gradients().empty(), "there are no gradients");

    std::vector<NamedState> state = optimizer.state();
    expect_contains(error_of([&] {
                      optimizer.load_state({state.begin() + 1, state.end()});
                    }),
                    "state weight.exp_avg is missing");
    const auto load_with = [&](const NamedState& more) {
      std::vector<NamedState> changed = state;
      changed.push_back(more);
      return error_of([&] { optimizer.load_state(changed); });
    };
    expect_contains(load_with(state[0]), "weight.exp_avg is there twice");
    expect_contains(load_with({"wide", "exp_avg", input}), "wide.exp_avg is not this optimiser's");
    state[0].tensor = input;
    expect_contains(error_of([&] { optimizer.load_state(state); }),
                    "state weight.exp_avg has shape [2, 4], not [4, 4]");

    net->weight.set_data(net->weight.detach().clone());
    expect_contains(error_of([&] { optimizer.step(); }), "parameter weight was moved");
  }
  torch::nn::Linear net(4, 4);
  DistributedDataParallel plain(*net, communicator);
  expect_contains(error_of([&] {
                    ShardedOptimizer({{trainable_parameters(*net), AdamWRule{}}}, plain);
                  }),
                  "needs DdpOptions::zero");
  torch::nn::Embedding sparse(torch::nn::EmbeddingOptions(10, 4).sparse(true));
  DistributedDataParallel ddp(*sparse, communicator, {.zero = ZeroStage::kGradients});
  ShardedOptimizer optimizer({{trainable_parameters(*sparse), AdamWRule{}}}, ddp);
  expect_contains(error_of([&] {
                    ddp(torch::tensor({1, 2}, torch::kLong)).sum().backward();
                  }),
                  "the gradient of weight is sparse");
}

void run_mismatch(Communicator& communicator) {
  torch::nn::Linear net(4, 4);
  const bool other = communicator.rank() == communicator.size() - 1;
  DistributedDataParallel ddp(*net, communicator,
                              {.zero = other ? ZeroStage::kGradients : ZeroStage::kOptimizer});
}

// The last rank dies in the middle of a backward.
void run_lost(Communicator& communicator) {
  Training ours(communicator, ZeroStage::kGradients, AdamWRule{}, torch::kFloat);
  for (int step = 0; step < 3; ++step) ours.step(step, communicator);
  ours.zero_grad();
  torch::Tensor loss = ours.loss(3, 0, 1);
  if (communicator.rank() == communicator.size() - 1) std::raise(SIGKILL);
  loss.backward();
  ours.update();
}

void run_resume(Communicator& communicator, const std::vector<std::string>& arguments) {
  const auto stage = static_cast<ZeroStage>(std::stoi(arguments.at(0)));
  const int first = std::stoi(arguments.at(2)), last = std::stoi(arguments.at(3));
  Training training(communicator, stage, AdamWRule{.weight_decay = 0.1}, torch::kDouble);
  Checkpoint checkpoint({.directory = arguments.at(1), .async = false}, communicator, c10::kCPU);
  std::vector<NamedState> state;
  const auto tensors = [&] {
    state = training.flat ? training.flat->state() : training.sharded->state();
    std::vector<NamedTensor> all;
    for (const auto& item : training.net->named_parameters()) {
      all.push_back({item.key(), item.value()});
    }
    for (const NamedState& each : state) {
      all.push_back({concat(each.parameter, ".", each.name), each.tensor});
    }
    return all;
  };
  if (first > 0) {
    expect(checkpoint.load(tensors()).value().step == static_cast<std::uint64_t>(first),
           "it goes on from there");
    if (training.sharded) training.sharded->load_state(state);
  }
  const std::int64_t rows = 8 / communicator.size();
  for (int step = first; step < last; ++step) {
    training.zero_grad();
    training.loss(step, communicator.rank() * rows, rows).backward();
    training.update();
  }
  checkpoint.save(static_cast<std::uint64_t>(last), {}, tensors());
  std::ofstream file(concat(arguments.at(4), ".", communicator.rank()), std::ios::binary);
  for (const torch::Tensor& each : training.net->parameters()) {
    const torch::Tensor values = each.detach().contiguous();
    file.write(static_cast<const char*>(values.const_data_ptr()),
               static_cast<std::streamsize>(values.nbytes()));
  }
}

bool run(const std::string& mode, Communicator& communicator,
         const std::vector<std::string>& arguments) {
  if (mode == "equal") return run_equal(communicator), true;
  if (mode == "handover") return run_handover(communicator), true;
  if (mode == "clip") return run_clip(communicator), true;
  if (mode == "scaler") return run_scaler(communicator), true;
  if (mode == "memory") return run_memory(communicator), true;
  if (mode == "refusals") return run_refusals(communicator), true;
  if (mode == "mismatch") return run_mismatch(communicator), true;
  if (mode == "lost") return run_lost(communicator), true;
  if (mode == "resume") return run_resume(communicator, arguments), true;
  return false;
}

}  // namespace

int program(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + std::min(argc, 2), argv + argc);
  const std::string mode = argc > 1 ? argv[1] : "";
  return run_worker("zero_worker", mode,
                    [&](Communicator& communicator) { return run(mode, communicator, arguments); });
}

}  // namespace zero_worker
