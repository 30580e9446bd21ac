// SPDX-License-Identifier: Apache-2.0
// The order in which a stage of a pipeline works on a batch's micro-batches (docs/pipeline.md).
// worker_sdk/torch/parallel/pipeline.h has each stage's part of the model, and moves the parts.
// Pure: no I/O, clock or thread.
#pragma once

#include <string_view>
#include <vector>

namespace ddprun {

// Both leave a stage idle for (p - 1) / m of a step, with p stages and m micro-batches. `kGpipe`
// (Huang et al., 2019): all forwards, then all backwards. `k1F1B` (Narayanan et al., 2019,
// "PipeDream-Flush"): a stage does a backward after each forward as soon as it can, and so keeps
// fewer activations.
enum class PipelineKind { kGpipe, k1F1B };

const char* to_string(PipelineKind kind);  // "gpipe", "1f1b"

// Throws Error(kInvalidArgument) for another text.
PipelineKind parse_pipeline_kind(std::string_view text);

// Activations go from stage s to s + 1, their gradients back.
struct PipelineOperation {
  enum class Kind {
    kReceiveActivation,  // from the stage before
    kForward,
    kSendActivation,   // to the stage after
    kReceiveGradient,  // from the stage after
    kBackward,
    kSendGradient  // to the stage before
  };
  Kind kind = Kind::kForward;
  int micro_batch = 0;

  friend bool operator==(const PipelineOperation&, const PipelineOperation&) = default;
};

const char* to_string(PipelineOperation::Kind kind);

// The operations of stage `stage` of `num_stages`, in order. Micro-batches go forward in their
// order, and backward, too. If all stages run these, none waits for ever, provided that one message
// from each stage to each neighbour may be under way. Throws Error(kInvalidArgument) for a stage
// that doesn't exist and for numbers below 1.
std::vector<PipelineOperation> pipeline_schedule(PipelineKind kind, int stage, int num_stages,
                                                 int num_micro_batches);

// Forwards only, for evaluation. Throws as above.
std::vector<PipelineOperation> forward_schedule(int stage, int num_stages, int num_micro_batches);

// The most micro-batches that are forwarded and not yet backwarded at once on this stage:
// min(num_stages - stage, num_micro_batches) with k1F1B, all with kGpipe. Throws as above.
int max_live_activations(PipelineKind kind, int stage, int num_stages, int num_micro_batches);

}  // namespace ddprun
