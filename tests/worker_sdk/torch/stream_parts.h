// SPDX-License-Identifier: Apache-2.0
// CUDA streams without CUDA: LibTorch's interface to a device, and a communicator that keeps the
// streams that it is told.
#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "tests/worker_sdk/torch/forwarding_communicator.h"

namespace ddprun::testing {

// One device. The handle of stream N is the address N. It is installed for good, so no backward may
// run after it.
class StreamsOfNoGpu final : public c10::impl::DeviceGuardImplInterface {
 public:
  static void install() {
    static const StreamsOfNoGpu instance;
    const c10::impl::DeviceGuardImplRegistrar registrar(c10::kCUDA, &instance);
  }

  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {c10::kCUDA, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device device) const override {
    TORCH_CHECK(device.index() == 0, "there is no GPU ", static_cast<int>(device.index()));
    return c10::Stream(c10::Stream::UNSAFE, device, current);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    current = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());
  }

 private:
  static inline thread_local c10::StreamId current = 0;
};

class ToldOfStreams final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  void follow_stream(const CurrentStream& current) override { told = current; }

  CurrentStream told;
};

}  // namespace ddprun::testing
