// SPDX-License-Identifier: Apache-2.0
// One rank of the tests of Pipeline (pipeline_test.py), each stage of a small net:
//
//   pipeline_worker equality|live|mesh|options|calls|throws|refused|late|endless …
//
// checks one after the other, and exits with 0 where all holds; `endless` trains until it is ended.
#include <torch/torch.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/text.h"
#include "tests/worker_sdk/torch/worker_program.h"
#include "worker_sdk/core/mesh.h"
#include "worker_sdk/torch/parallel/average_gradients.h"
#include "worker_sdk/torch/parallel/pipeline.h"

using namespace ddprun;
using namespace ddprun::testing;

namespace pipeline_worker {
namespace {

constexpr PipelineKind kKinds[] = {PipelineKind::kGpipe, PipelineKind::k1F1B};
constexpr std::int64_t kInputs = 6, kClasses = 5;
constexpr int kNumBlocks = 4;

// Four blocks of different widths, with the same numbers in every process. A stage runs some of
// them; the others stay as they are.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(torch::ScalarType dtype) {
    torch::manual_seed(7);
    const std::int64_t widths[] = {kInputs, 16, 8, 12, kClasses};
    for (int i = 0; i < kNumBlocks; ++i) {
      blocks->push_back(torch::nn::Sequential(
          torch::nn::Linear(widths[i], widths[i + 1]),
          torch::nn::LayerNorm(torch::nn::LayerNormOptions({widths[i + 1]}))));
    }
    to(dtype);
  }

  torch::Tensor run(torch::Tensor x, int first, int end) {
    for (int i = first; i < end; ++i) {
      x = blocks[static_cast<std::size_t>(i)]->as<torch::nn::Sequential>()->forward(x);
      if (i + 1 < kNumBlocks) x = torch::tanh(x);
    }
    return x;
  }

  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList());
};
TORCH_MODULE(Net);

struct Batch {
  torch::Tensor images, labels;

  Batch part(std::int64_t first, std::int64_t count) const {
    return {images.narrow(0, first, count), labels.narrow(0, first, count)};
  }
};

Batch batch_of(std::int64_t count, torch::ScalarType dtype) {
  torch::manual_seed(11 + static_cast<std::uint64_t>(count));
  return {torch::randn({count, kInputs}, dtype), torch::randint(kClasses, {count}, torch::kLong)};
}

Pipeline::Loss loss_over(const torch::Tensor& labels) {
  return [labels](const torch::Tensor& output, const MicroBatch& part) {
    return torch::cross_entropy_loss(output, labels.narrow(0, part.first, part.count));
  };
}

// The blocks of one rank.
struct Share {
  Share(const Communicator& pipe)
      : first(kNumBlocks * pipe.rank() / pipe.size()),
        end(kNumBlocks * (pipe.rank() + 1) / pipe.size()) {}

  Pipeline::Stage stage(Net& net) const {
    return [net, share = *this](const torch::Tensor& x) mutable {
      return net->run(x, share.first, share.end);
    };
  }
  std::vector<torch::Tensor> parameters(Net& net) const {
    std::vector<torch::Tensor> own;
    for (int i = first; i < end; ++i) {
      for (const auto& each : net->blocks[static_cast<std::size_t>(i)]->parameters()) {
        own.push_back(each);
      }
    }
    return own;
  }

  int first, end;
};

double tolerance_of(torch::ScalarType dtype) { return dtype == torch::kDouble ? 1e-12 : 1e-6; }

void expect_close(const torch::Tensor& ours, const torch::Tensor& theirs, const std::string& what) {
  const torch::Tensor far = (ours - theirs).to(torch::kDouble).norm();
  const double scale = std::max(theirs.to(torch::kDouble).norm().item<double>(), 1e-3);
  expect(far.item<double>() <= tolerance_of(theirs.scalar_type()) * scale,
         concat(what, ": off by ", far.item<double>() / scale));
}

void expect_same_gradients(Net& ours, Net& theirs, const Share& share, const std::string& what) {
  const auto mine = share.parameters(ours), reference = share.parameters(theirs);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    expect(mine[i].grad().defined() == reference[i].grad().defined(), what + ": has a gradient");
    if (!mine[i].grad().defined()) continue;
    expect_close(mine[i].grad(), reference[i].grad(), concat(what, ", gradient ", i));
  }
  std::size_t num_defined = 0;  // gradients of any blocks
  for (const auto& each : ours->parameters()) num_defined += each.grad().defined() ? 1 : 0;
  expect(num_defined <= mine.size(), what + ": no other block has gradients");
}

// Several steps on one net, with different batches, whose gradients add up.
void check_equality(Communicator& world, PipelineKind kind, int num_micro_batches,
                    torch::ScalarType dtype) {
  Net net(dtype), reference(dtype);
  const Share share(world);
  Pipeline pipeline(share.stage(net), world,
                    {.kind = kind,
                     .num_micro_batches = num_micro_batches,
                     .broadcast_loss = num_micro_batches == 2});
  for (const std::int64_t count : {10, 10, 5, 10}) {
    const std::string what = concat(to_string(kind), ", ", num_micro_batches, " micro-batches of ",
                                    count, ", ", c10::toString(dtype));
    const Batch batch = batch_of(count, dtype);
    const torch::Tensor expected =
        torch::cross_entropy_loss(reference->run(batch.images, 0, kNumBlocks), batch.labels);
    expected.backward();
    const torch::Tensor loss = pipeline.train_step(
        pipeline.is_first() ? batch.images : torch::Tensor(), loss_over(batch.labels));
    const bool has_loss = pipeline.is_last() || num_micro_batches == 2;
    expect(loss.defined() == has_loss, what + ": who has the loss");
    if (has_loss) expect_close(loss, expected.detach(), what + ", loss");
    expect_same_gradients(net, reference, share, what);

    const torch::Tensor output = pipeline.evaluate(batch.images);
    expect(output.defined() == pipeline.is_last(), what + ": who has the output");
    if (!output.defined()) continue;
    expect(!output.requires_grad(), what + ": evaluation is without gradients");
    expect_close(output, reference->run(batch.images, 0, kNumBlocks).detach(), what + ", output");
  }
}

// A first stage without trained parameters still passes its gradient's message.
void check_frozen(Communicator& world) {
  Net net(torch::kDouble), reference(torch::kDouble);
  const Share share(world);
  for (Net* each : {&net, &reference}) {
    for (const auto& parameter : each->get()->blocks[0]->parameters()) {
      parameter.set_requires_grad(false);
    }
  }
  Pipeline pipeline(share.stage(net), world, {.num_micro_batches = 3});
  const Batch batch = batch_of(7, torch::kDouble);
  torch::cross_entropy_loss(reference->run(batch.images, 0, kNumBlocks), batch.labels).backward();
  pipeline.train_step(batch.images, loss_over(batch.labels));
  expect_same_gradients(net, reference, share, "frozen");
}

void equality(Communicator& world) {
  for (const torch::ScalarType dtype : {torch::kDouble, torch::kFloat}) {
    for (const PipelineKind kind : kKinds) {
      for (const int num_micro_batches : {1, 2, 3, 8}) {
        check_equality(world, kind, num_micro_batches, dtype);
      }
    }
  }
  check_frozen(world);
}

// A guard in each forward's graph shows how long the graph lives.
void live(Communicator& world) {
  const Batch batch = batch_of(16, torch::kFloat);
  const Share share(world);
  for (const PipelineKind kind : kKinds) {
    Net net(torch::kFloat);
    const auto alive = std::make_shared<int>(0);
    int most = 0;
    Pipeline pipeline(
        [&](const torch::Tensor& x) {
          const torch::Tensor output = net->run(x, share.first, share.end);
          const auto guard = std::shared_ptr<int>(&++*alive, [alive](int* count) { --*count; });
          output.register_hook([guard](const torch::Tensor&) {});
          most = std::max(most, *alive);
          return output;
        },
        world, {.kind = kind, .num_micro_batches = 8});
    pipeline.train_step(batch.images, loss_over(batch.labels));
    expect(*alive == 0, "nothing is live after the step");
    const int expected = max_live_activations(kind, world.rank(), world.size(), 8);
    expect(most == expected, concat(to_string(kind), ": ", most, " of ", expected, " live"));
  }
}

// Two pipelines of two stages. Each trains on half of the batch.
void mesh(Communicator& world) {
  Mesh layout(world, MeshLayout::parse("pp2xdp2", {"pp", "dp"}));
  Communicator& pipe = layout.along("pp");
  Communicator& data = layout.along("dp");
  for (const torch::ScalarType dtype : {torch::kDouble, torch::kFloat}) {
    Net net(dtype), reference(dtype);
    const Share share(pipe);
    Pipeline pipeline(share.stage(net), pipe, {.num_micro_batches = 3});
    const Batch batch = batch_of(20, dtype);
    const torch::Tensor expected =
        torch::cross_entropy_loss(reference->run(batch.images, 0, kNumBlocks), batch.labels);
    expected.backward();
    const Batch own = batch.part(10 * data.rank(), 10);
    torch::Tensor loss = pipeline.train_step(own.images, loss_over(own.labels));
    average_gradients(share.parameters(net), data);
    expect_same_gradients(net, reference, share, "pp2 x dp2");
    if (!pipeline.is_last()) continue;
    torch::Tensor both = loss.to(torch::kDouble).clone();
    data.all_reduce({.data = both.mutable_data_ptr(), .count = 1, .dtype = DType::kFloat64},
                    ReduceOp::kAverage);
    expect_close(both.to(dtype), expected.detach(), "the loss of both");
  }
  // These take many buckets and have two dtypes. One gradient is missing on one rank, one on all.
  std::vector<torch::Tensor> parameters;
  for (int i = 0; i < 6; ++i) {
    parameters.push_back(torch::zeros({700'000}, i == 3 ? torch::kDouble : torch::kFloat));
    if (i == 5 || (i == 4 && data.rank() == 0)) continue;
    parameters.back().mutable_grad() = torch::full_like(parameters.back(), i + 2.0 * data.rank());
  }
  average_gradients(parameters, data);
  const double averages[] = {1, 2, 3, 4, 3, 0};
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    expect((parameters[i].grad() == averages[i]).all().item<bool>(), concat("average ", i));
  }
}

void options(Communicator& world) {
  Net net(torch::kFloat);
  const Share share(world);
  const bool is_odd = world.rank() == 1;
  const std::string different = error_of([&] {
    Pipeline(share.stage(net), world,
             {.kind = is_odd ? PipelineKind::kGpipe : PipelineKind::k1F1B,
              .num_micro_batches = is_odd ? 8 : 4});
  });
  expect_contains(different, "stage 0 has 1f1b with 4 micro-batches");
  expect_contains(different, "stage 1 gpipe with 8 micro-batches");
  expect_contains(error_of([&] { Pipeline(share.stage(net), world, {.num_micro_batches = 0}); }),
                  "0 micro-batches can't be");
}

void calls(Communicator& world) {
  Net net(torch::kFloat);
  Pipeline pipeline(Share(world).stage(net), world);
  const Batch batch = batch_of(4, torch::kFloat);
  if (pipeline.is_last()) {
    expect_contains(error_of([&] { pipeline.evaluate({}); }),
                    concat("stage ", world.rank() - 1, " called train_step(), stage ", world.rank(),
                           " evaluate()"));
  } else {
    const std::string error =
        error_of([&] { pipeline.train_step(batch.images, loss_over(batch.labels)); });
    expect_contains(error, concat("rank ", world.size() - 1, " aborted"));
    expect_contains(error, "every stage calls the same");
  }
}

// Stage 1 throws in the second micro-batch of its second step. By then the others have posted
// receives.
void throws(Communicator& world) {
  Net net(torch::kFloat);
  const Share share(world);
  int num_calls = 0;
  Pipeline pipeline(
      [&](const torch::Tensor& x) {
        if (world.rank() == 1 && ++num_calls == 6) throw std::runtime_error("out of luck");
        return net->run(x, share.first, share.end);
      },
      world, {.num_micro_batches = 4});
  const Batch batch = batch_of(8, torch::kFloat);
  pipeline.train_step(batch.images, loss_over(batch.labels));
  std::string what;
  ErrorCode code = ErrorCode::kSystem;
  for (int step = 1; step < 4; ++step) {  // later steps fail, too
    try {
      pipeline.train_step(batch.images, loss_over(batch.labels));
      what = "";
    } catch (const Error& error) {
      code = error.code();
      what = error.what();
    } catch (const std::runtime_error& error) {
      what = error.what();
    }
    if (world.rank() == 1 && step == 1) {
      expect(what == "out of luck", "its own error");
      continue;
    }
    expect_contains(what, "stage 1: out of luck");
    expect(code == (step == 1 ? ErrorCode::kPeerLost : ErrorCode::kAborted), "its code");
    if (world.rank() != 1) expect_contains(what, "rank 1");
  }
}

// Impossible arguments are refused. If nothing has begun, the next step works.
void refused(Communicator& world) {
  Net net(torch::kFloat);
  const Share share(world);
  const Batch batch = batch_of(8, torch::kFloat);
  {
    Pipeline pipeline(share.stage(net), world, {.num_micro_batches = 2});
    const auto step = [&](const torch::Tensor& input) {
      pipeline.train_step(input, loss_over(batch.labels));
    };
    if (pipeline.is_first()) {
      expect_contains(error_of([&] { step({}); }), "undefined tensor; nothing has begun");
      expect_contains(error_of([&] { step(torch::zeros({0, kInputs})); }), "sizes are [0, 6]");
    }
    if (pipeline.is_last()) {
      expect_contains(error_of([&] { pipeline.train_step({}, nullptr); }), "needs a loss there");
    }
    step(batch.images);
  }
  const auto refusal = [&](const Pipeline::Stage& stage, const Pipeline::Loss& loss,
                           int num_steps) {
    Pipeline pipeline(stage, world, {.num_micro_batches = 2});
    return error_of([&] {
      for (int step = 0; step < num_steps; ++step) pipeline.train_step(batch.images, loss);
    });
  };
  expect_contains(refusal(
                      share.stage(net),
                      [](const torch::Tensor& output, const MicroBatch&) { return output; }, 1),
                  "the loss of micro-batch 0 is Float [4, 5]");
  int num_calls = 0;
  expect_contains(refusal(
                      [&](const torch::Tensor& x) {
                        const torch::Tensor y = net->run(x, share.first, share.end);
                        const bool is_later = world.rank() == 0 && ++num_calls == 4;
                        return is_later ? y.narrow(0, 0, 3) : y;
                      },
                      loss_over(batch.labels), 2),
                  "stage 0's output of micro-batch 1 is Float [3, ");
  expect_contains(refusal([&](const torch::Tensor& x) { return x.to(torch::kLong); },
                          loss_over(batch.labels), 1),
                  "stage 0's output of micro-batch 0 is Long");
}

// The last stage does not come.
void late(Communicator& world) {
  Net net(torch::kFloat);
  Pipeline pipeline(Share(world).stage(net), world,
                    {.num_micro_batches = 2, .timeout = std::chrono::milliseconds(300)});
  const Batch batch = batch_of(8, torch::kFloat);
  if (!pipeline.is_last()) {
    expect_contains(error_of([&] { pipeline.train_step(batch.images, loss_over(batch.labels)); }),
                    concat("rank ", world.size() - 1));
  }
  world.barrier();  // the last rank goes when all have had their errors
}

void endless(Communicator& world) {
  Net net(torch::kFloat);
  Pipeline pipeline(Share(world).stage(net), world, {.num_micro_batches = 4});
  const Batch batch = batch_of(8, torch::kFloat);
  for (bool is_first_step = true;; is_first_step = false) {
    pipeline.train_step(batch.images, loss_over(batch.labels));
    if (is_first_step) std::cout << "trains" << std::endl;
  }
}

}  // namespace

int program(int argc, char** argv) {
  using Mode = void (*)(Communicator&);
  const std::map<std::string, Mode> modes = {
      {"equality", equality}, {"live", live},   {"mesh", mesh},
      {"options", options},   {"calls", calls}, {"throws", throws},
      {"refused", refused},   {"late", late},   {"endless", endless}};
  torch::set_num_threads(1);
  return run_worker("pipeline_worker", argc > 1 ? argv[1] : "", [&](Communicator& world) {
    for (int i = 1; i < argc; ++i) {
      const auto mode = modes.find(argv[i]);
      if (mode == modes.end()) return false;
      std::cout << "mode " << argv[i] << std::endl;
      mode->second(world);
    }
    return argc > 1;
  });
}

}  // namespace pipeline_worker
