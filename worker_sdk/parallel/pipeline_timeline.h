// SPDX-License-Identifier: Apache-2.0
// When each stage of a pipeline would be at what: what a schedule costs at best. Every forward is
// taken to be as long as every other, every backward, too, and messages to take no time. Pure.
#pragma once

#include <string>
#include <vector>

#include "worker_sdk/parallel/pipeline_schedule.h"

namespace ddprun {

struct PipelineSpan {
  PipelineOperation::Kind kind = PipelineOperation::Kind::kForward;  // or kBackward
  int micro_batch = 0;
  int begin = 0, end = 0;  // of the caller's unit of time
};

// By stage, in order of time; each operation begins as soon as its stage is free and its input
// there. Throws what pipeline_schedule() throws, and Error(kInvalidArgument) for times below 1.
std::vector<std::vector<PipelineSpan>> pipeline_timeline(PipelineKind kind, int num_stages,
                                                         int num_micro_batches,
                                                         int forward_time = 1,
                                                         int backward_time = 1);

// A line for each stage, with forwards and backwards of one unit each: "F0", "B0", "·" for idle.
std::string draw_pipeline(PipelineKind kind, int num_stages, int num_micro_batches);

}  // namespace ddprun
