// SPDX-License-Identifier: Apache-2.0
// How long the parts of DistributedDataParallel's steps take: by the host's clock, or on a GPU by
// the device's events. Nobody waits for those.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "common/clock.h"
#include "worker_sdk/core/communicator.h"
#include "worker_sdk/ddp/device_steps.h"
#include "worker_sdk/ddp/reducer.h"
#include "worker_sdk/ddp/step_statistics.h"

namespace ddprun::torch_adapter {

// The agent hears of each step, too, if the communicator has a WorkerProgress.
class StepTimes {
 public:
  // `reducer` tells the marks of its iterations. Both must outlive this object.
  StepTimes(Reducer& reducer, c10::Device device, Communicator& communicator);
  ~StepTimes();

  // One whose backward communicates.
  void forward_begins();
  // The loop waited so long for the data of the step under way, or of the coming one.
  void waited_for_data(Clock::duration time);
  // The reducer's iteration is over.
  void step_ends();

  StepStatistics statistics();

 private:
  class StreamEvent;
  void count_device_steps();
  void count(const IterationTrace& trace);

  const Reducer& reducer_;
  Communicator& communicator_;
  StepRecorder steps_;
  const std::unique_ptr<DeviceSteps<StreamEvent>> device_steps_;  // null: on the CPU
  Clock::duration loader_{};  // with device_steps_: what the step under way waited for its data
};

}  // namespace ddprun::torch_adapter
