// SPDX-License-Identifier: Apache-2.0
// When each stage of a pipeline would do what: a schedule's cost at best. All forwards are taken to
// be equally long, all backwards, too, and messages to take no time. Pure.
#pragma once

#include <string>
#include <vector>

#include "worker_sdk/parallel/pipeline_schedule.h"

namespace ddprun {

struct PipelineSpan {
  PipelineOperation::Kind kind = PipelineOperation::Kind::kForward;  // or kBackward
  int micro_batch = 0;
  int begin = 0, end = 0;  // in the caller's unit of time
};

// Returns each stage's operations in order of time. Each begins as soon as its stage is free and
// its input there. Throws what pipeline_schedule() throws, and Error(kInvalidArgument) for times
// below 1.
std::vector<std::vector<PipelineSpan>> pipeline_timeline(PipelineKind kind, int num_stages,
                                                         int num_micro_batches,
                                                         int forward_time = 1,
                                                         int backward_time = 1);

// Returns a line for each stage, with forwards and backwards of one unit each: "F0", "B0", "·" for
// idle.
std::string draw_pipeline(PipelineKind kind, int num_stages, int num_micro_batches);

}  // namespace ddprun
