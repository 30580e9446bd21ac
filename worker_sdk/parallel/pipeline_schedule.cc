// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/parallel/pipeline_schedule.h"

#include <algorithm>

#include "common/error.h"
#include "common/log.h"

namespace ddprun {
namespace {

using Kind = PipelineOperation::Kind;

void check(int stage, int num_stages, int num_micro_batches) {
  if (num_stages < 1 || num_micro_batches < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("a pipeline of ", num_stages, " stages and ", num_micro_batches,
                       " micro-batches can't be: at least 1 of each"));
  }
  if (stage < 0 || stage >= num_stages) {
    throw Error(ErrorCode::kInvalidArgument, concat("no stage ", stage, " in a pipeline of ",
                                                    num_stages, ": they are 0 … ", num_stages - 1));
  }
}

// Operations of one stage, with the messages that its neighbours ask for.
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
  throw Error(ErrorCode::kInvalidArgument,
              concat("no pipeline schedule '", text, "': gpipe or 1f1b"));
}

const char* to_string(PipelineOperation::Kind kind) {
  switch (kind) {
    case Kind::kReceiveActivation:
      return "receive activation";
    case Kind::kForward:
      return "forward";
    case Kind::kSendActivation:
      return "send activation";
    case Kind::kReceiveGradient:
      return "receive gradient";
    case Kind::kBackward:
      return "backward";
    case Kind::kSendGradient:
      return "send gradient";
  }
  return "?";
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

}  // namespace ddprun
