// SPDX-License-Identifier: Apache-2.0
// CUDA streams without CUDA: what LibTorch asks of a device's part, and a communicator that keeps
// what it is told of streams.
#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <memory>
#include <string_view>

#include "worker_sdk/core/communicator.h"

namespace ddprun::testing {

// One device; the handle of stream N is the address N. Installed for good: no backward after it.
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

class ToldOfStreams final : public Communicator {
 public:
  explicit ToldOfStreams(Communicator& real) : real_(real) {}
  void follow_stream(const CurrentStream& current) override { told = current; }

  int rank() const override { return real_.rank(); }
  int size() const override { return real_.size(); }
  std::string_view backend() const override { return real_.backend(); }
  WorkPtr all_reduce(TensorView buffer, ReduceOp op, const CallOptions& options) override {
    return real_.all_reduce(buffer, op, options);
  }
  WorkPtr broadcast(TensorView buffer, int root, const CallOptions& options) override {
    return real_.broadcast(buffer, root, options);
  }
  WorkPtr all_gather(TensorView input, TensorView output, const CallOptions& options) override {
    return real_.all_gather(input, output, options);
  }
  WorkPtr reduce_scatter(TensorView input, TensorView output, ReduceOp op,
                         const CallOptions& options) override {
    return real_.reduce_scatter(input, output, op, options);
  }
  WorkPtr send(TensorView buffer, int peer, const CallOptions& options) override {
    return real_.send(buffer, peer, options);
  }
  WorkPtr recv(TensorView buffer, int peer, const CallOptions& options) override {
    return real_.recv(buffer, peer, options);
  }
  void barrier(const CallOptions& options) override { real_.barrier(options); }
  std::unique_ptr<CommBuffer> allocate(std::size_t size_bytes) override {
    return real_.allocate(size_bytes);
  }
  std::unique_ptr<Communicator> split(const std::vector<int>& ranks,
                                      const SplitOptions& options) override {
    return real_.split(ranks, options);
  }
  void abort(std::string_view reason) override { real_.abort(reason); }

  CurrentStream told;

 private:
  Communicator& real_;
};

}  // namespace ddprun::testing
