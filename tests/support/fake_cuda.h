// SPDX-License-Identifier: Apache-2.0
// CUDA without a GPU: "device" memory is host memory, a stream is a thread with a queue, an event
// is a mark in the queue. Work is as asynchronous as on a GPU, so a missing wait shows up as a
// wrong result.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "worker_sdk/core/nccl/nccl_api.h"

namespace ddprun::test {

class FakeStream;

// One per test, shared by its ranks. The legacy default stream (nullptr) exists once per device.
class FakeCuda : public nccl::CudaApi {
 public:
  explicit FakeCuda(int num_devices);
  ~FakeCuda() override;

  // Faults. The named function returns `result` from now on, or after this many calls that work.
  void fail(const std::string& function, nccl::CudaResult result, int num_good_calls = 0);
  void succeed_again(const std::string& function);
  // Each call of the named function hangs from now on, until release_hangs(). Then it does its
  // work.
  void hang(const std::string& function);
  void release_hangs();
  int num_hanging() const;  // calls that hang
  // Devices with the same UUID are one GPU that is seen under two indices.
  void set_uuid(int device, std::string uuid);
  // Devices with the same bus id are MIG slices of one GPU.
  void set_pci_bus_id(int device, std::string bus_id);

  // Runs `task` on the stream, after the tasks already in it. It may block. nullptr: the default
  // stream of the calling thread's device.
  void enqueue(nccl::Stream stream, std::function<void()> task);

  // Captures a graph on a stream that was created, and on each stream that waits for an event of
  // it. One capture at a time. The captured tasks run only in replay(), in the order of the calls.
  using Graph = std::vector<std::function<void()>>;
  void begin_capture(nccl::Stream stream);
  // nullopt: the capture is broken, e.g. by a query or a wait that CUDA forbids.
  std::optional<Graph> end_capture();
  void replay(const Graph& graph, nccl::Stream stream);

  // Returns the number of streams, events and allocations that nobody has freed.
  int num_live_objects() const;
  // Counts the objects that live now no more: they were left behind on purpose. Returns when all
  // enqueued tasks have run.
  void forget_live_objects();

  nccl::CudaResult device_count(int* count) override;
  nccl::CudaResult get_device(int* device) override;
  nccl::CudaResult set_device(int device) override;
  nccl::CudaResult device_uuid(int device, std::string* uuid) override;
  nccl::CudaResult device_pci_bus_id(int device, std::string* bus_id) override;
  nccl::CudaResult compute_capability(int device, int* major, int* minor) override;  // 9.0
  nccl::CudaResult stream_create_high_priority(nccl::Stream* stream) override;
  nccl::CudaResult stream_destroy(nccl::Stream stream) override;
  nccl::CudaResult stream_synchronize(nccl::Stream stream) override;
  nccl::CudaResult stream_wait_event(nccl::Stream stream, nccl::Event event) override;
  nccl::CudaResult stream_is_capturing(nccl::Stream stream, bool* is_capturing) override;
  nccl::CudaResult event_create(nccl::Event* event, bool is_timed) override;
  nccl::CudaResult event_destroy(nccl::Event event) override;
  nccl::CudaResult event_record(nccl::Event event, nccl::Stream stream) override;
  nccl::CudaResult event_query(nccl::Event event) override;
  nccl::CudaResult event_elapsed(float* milliseconds, nccl::Event begin, nccl::Event end) override;
  nccl::CudaResult memory_allocate(void** data, std::size_t size_bytes) override;
  nccl::CudaResult memory_free(void* data) override;
  nccl::CudaResult memory_set(void* data, int byte, std::size_t size_bytes,
                              nccl::Stream stream) override;
  nccl::CudaResult memory_copy(void* to, const void* from, std::size_t size_bytes,
                               nccl::Stream stream) override;
  std::string error_text(nccl::CudaResult result) override;

 private:
  struct Fault {
    nccl::CudaResult result;
    int num_good_calls;  // calls that still work
  };
  struct Capture {
    std::set<nccl::Stream> streams;
    Graph graph;
    bool is_broken = false;
  };
  nccl::CudaResult fault(const std::string& function);
  // mutex_ is held.
  bool captures(nccl::Stream stream) const;
  nccl::CudaResult break_capture(nccl::CudaResult result);
  std::shared_ptr<FakeStream> find(nccl::Stream stream);
  void synchronize_streams(int device);

  const int num_devices_;
  mutable std::mutex mutex_;
  int num_forgotten_ = 0;                // Guarded by mutex_
  std::map<std::string, Fault> faults_;  // Guarded by mutex_
  std::set<std::string> hangs_;          // Guarded by mutex_
  int num_hanging_ = 0;                  // Guarded by mutex_
  std::condition_variable changed_;
  std::vector<std::string> uuids_;                               // Guarded by mutex_
  std::vector<std::string> pci_bus_ids_;                         // Guarded by mutex_
  std::vector<std::shared_ptr<FakeStream>> default_streams_;     // constant after construction
  std::map<nccl::Stream, std::shared_ptr<FakeStream>> streams_;  // Guarded by mutex_
  struct FakeEvent;
  std::map<nccl::Event, std::shared_ptr<FakeEvent>> events_;  // Guarded by mutex_
  std::map<void*, std::size_t> allocations_;                  // Guarded by mutex_
  std::shared_ptr<FakeEvent> find_event(nccl::Event event);
  std::optional<Capture> capture_;         // Guarded by mutex_
  std::set<nccl::Event> captured_events_;  // Guarded by mutex_; last recorded in a capture
};

}  // namespace ddprun::test
