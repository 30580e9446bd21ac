// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/step_times.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>
#include <utility>

#include "worker_sdk/core/worker_progress.h"

namespace ddprun::torch_adapter {

// A mark on the device's stream for DeviceSteps, made of the device's timed events.
class StepTimes::StreamEvent {
 public:
  explicit StreamEvent(c10::Device device)
      : device_(device), event_(device.type(), c10::EventFlag::BACKEND_DEFAULT) {}
  void record() { event_.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_)); }
  bool has_passed() const { return event_.query(); }
  double seconds_since(const StreamEvent& earlier) const {
    return earlier.event_.elapsedTime(event_) / 1e3;
  }

 private:
  c10::Device device_;
  c10::Event event_;
};

StepTimes::StepTimes(Reducer& reducer, c10::Device device, Communicator& communicator)
    : reducer_(reducer),
      communicator_(communicator),
      device_steps_(device.is_cpu() ? nullptr
                                    : std::make_unique<DeviceSteps<StreamEvent>>(
                                          [device] { return StreamEvent(device); })) {
  if (device_steps_) reducer.set_marker([this](StepMark mark) { device_steps_->mark(mark); });
}

StepTimes::~StepTimes() = default;

void StepTimes::forward_begins() {
  if (device_steps_) {
    device_steps_->mark(StepMark::kForward);
  } else {
    steps_.forward_begins(Clock::now());
  }
}

void StepTimes::waited_for_data(Clock::duration time) {
  if (device_steps_) {
    loader_ += time;
  } else {
    steps_.waited_for_data(time);
  }
}

void StepTimes::step_ends() {
  if (!device_steps_) return count(reducer_.trace());
  std::uint64_t num_bytes = 0;
  for (const auto& bucket : reducer_.trace().buckets) num_bytes += bucket.size_bytes;
  device_steps_->step_ends(num_bytes, std::exchange(loader_, {}));
  count_device_steps();
}

// Counts the steps that the device has done since the last call.
void StepTimes::count_device_steps() {
  while (const auto step = device_steps_->take()) {
    if (step->forward) steps_.forward_begins(*step->forward);
    steps_.waited_for_data(step->loader);
    count(step->trace);
  }
}

void StepTimes::count(const IterationTrace& trace) {
  const std::optional<StepParts> parts = steps_.step_ends(trace);
  if (parts && communicator_.progress() != nullptr) communicator_.progress()->add_parts(*parts);
}

StepStatistics StepTimes::statistics() {
  if (device_steps_) count_device_steps();
  return steps_.statistics();
}

}  // namespace ddprun::torch_adapter
