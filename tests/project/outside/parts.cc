// SPDX-License-Identifier: Apache-2.0
// The components that need no communicator.
#include <ddprun/ddp/distributed_sampler.h>
#include <ddprun/parallel/pipeline_schedule.h>

#include <cstdio>

int main() {
  const ddprun::DistributedSampler sampler(8, 2, 0);
  const auto operations = ddprun::pipeline_schedule(ddprun::PipelineKind::k1F1B, 0, 2, 3);
  std::printf("%zu samples, %zu operations\n", sampler.indices(0).size(), operations.size());
}
