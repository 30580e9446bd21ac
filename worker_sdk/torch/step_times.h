// SPDX-License-Identifier: Apache-2.0
// How long the parts of DistributedDataParallel's steps take: by the host's clock, or on a GPU by
// the device's events. No thread waits for those events.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "common/clock.h"
#include "worker_sdk/core/communicator.h"
#include "worker_sdk/ddp/device_steps.h"
#include "worker_sdk/ddp/reducer.h"
#include "worker_sdk/ddp/step_statistics.h"

namespace ddprun::torch_adapter {

// It also reports each step to the agent if the communicator has a WorkerProgress.
class StepTimes {
 public:
  // `reducer` reports the marks of its iterations here. Both must outlive this object.
  StepTimes(Reducer& reducer, c10::Device device, Communicator& communicator);
  ~StepTimes();

  // Says that a forward begins whose backward communicates.
  void forward_begins();
  // Adds the time that the loop waited for the data of the step under way, or of the coming one.
  void waited_for_data(Clock::duration time);
  // Says that the reducer's iteration is over.
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
  Clock::duration loader_{};  // with device_steps_: the present step's wait for data
};

}  // namespace ddprun::torch_adapter
