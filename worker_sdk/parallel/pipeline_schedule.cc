// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/parallel/pipeline_schedule.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "common/throw_error.h"
#include "worker_sdk/parallel/micro_batches.h"

namespace ddprun {
namespace {

using Kind = PipelineOperation::Kind;

void check(int stage, int num_stages, int num_micro_batches) {
  if (num_stages < 1 || num_micro_batches < 1) {
    throw_invalid("a pipeline of ", num_stages, " stages and ", num_micro_batches,
                  " micro-batches can't be: at least 1 of each");
  }
  if (stage < 0 || stage >= num_stages) {
    throw_invalid("no stage ", stage, " in a pipeline of ", num_stages, ": they are 0 … ",
                  num_stages - 1);
  }
}

// Operations of one stage, with the messages that its neighbours need.
class Stage {
 public:
  Stage(int stage, int num_stages) : is_first_(stage == 0), is_last_(stage == num_stages - 1) {}

  void forward(int micro_batch) {
    if (!is_first_) add(Kind::kReceiveActivation, micro_batch);
    add(Kind::kForward, micro_batch);
    if (!is_last_) add(Kind::kSendActivation, micro_batch);
  }

  void backward(int micro_batch) {
    if (!is_last_) add(Kind::kReceiveGradient, micro_batch);
    add(Kind::kBackward, micro_batch);
    if (!is_first_) add(Kind::kSendGradient, micro_batch);
  }

  std::vector<PipelineOperation> take() { return std::move(operations_); }

 private:
  void add(Kind kind, int micro_batch) { operations_.push_back({kind, micro_batch}); }

  const bool is_first_, is_last_;
  std::vector<PipelineOperation> operations_;
};

}  // namespace

const char* to_string(PipelineKind kind) { return kind == PipelineKind::kGpipe ? "gpipe" : "1f1b"; }

PipelineKind parse_pipeline_kind(std::string_view text) {
  for (const PipelineKind kind : {PipelineKind::kGpipe, PipelineKind::k1F1B}) {
    if (text == to_string(kind)) return kind;
  }
  throw_invalid("no pipeline schedule '", text, "': gpipe or 1f1b");
}

const char* to_string(PipelineOperation::Kind kind) {
  constexpr std::array kNames = {"receive activation", "forward",  "send activation",
                                 "receive gradient",   "backward", "send gradient"};
  return kNames.at(static_cast<std::size_t>(kind));
}

std::vector<PipelineOperation> pipeline_schedule(PipelineKind kind, int stage, int num_stages,
                                                 int num_micro_batches) {
  const int ahead = max_live_activations(kind, stage, num_stages, num_micro_batches);
  Stage operations(stage, num_stages);
  // Once `ahead` micro-batches are live, each forward waits for a backward. So the first ahead - 1
  // are done without one; then forwards and backwards take turns.
  for (int next = 0; next < ahead - 1; ++next) operations.forward(next);
  int done = 0;
  for (int next = ahead - 1; next < num_micro_batches; ++next) {
    operations.forward(next);
    operations.backward(done++);
  }
  while (done < num_micro_batches) operations.backward(done++);
  return operations.take();
}

std::vector<PipelineOperation> forward_schedule(int stage, int num_stages, int num_micro_batches) {
  check(stage, num_stages, num_micro_batches);
  Stage operations(stage, num_stages);
  for (int next = 0; next < num_micro_batches; ++next) operations.forward(next);
  return operations.take();
}

int max_live_activations(PipelineKind kind, int stage, int num_stages, int num_micro_batches) {
  check(stage, num_stages, num_micro_batches);
  return kind == PipelineKind::kGpipe ? num_micro_batches
                                      : std::min(num_stages - stage, num_micro_batches);
}

std::vector<MicroBatch> split_batch(std::int64_t count, int num_parts) {
  const std::int64_t parts = std::min<std::int64_t>(count, num_parts);
  std::vector<MicroBatch> result;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t first = count * part / parts;
    const std::int64_t size = count * (part + 1) / parts - first;
    const double weight = static_cast<double>(size) / static_cast<double>(count);
    result.push_back({first, size, weight, static_cast<int>(part)});
  }
  return result;
}

}  // namespace ddprun
