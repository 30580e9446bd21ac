// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_cuda.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "tests/support/fake_stream.h"

namespace ddprun::test {
namespace {

constexpr nccl::CudaResult kInvalidValue = 1;
constexpr nccl::CudaResult kOutOfMemory = 2;
constexpr nccl::CudaResult kInvalidDevice = 101;
constexpr nccl::CudaResult kCaptureUnsupported = 900;
constexpr nccl::CudaResult kCaptureIsolation = 905;
constexpr nccl::CudaResult kCapturedEvent = 907;

// CUDA's current device is a property of the thread.
thread_local int current_device = 0;

}  // namespace

// An event. It has the mark of the latest event_record. A stream that waits keeps the mark that it
// found.
struct FakeCuda::FakeEvent {
  struct Mark {
    std::mutex mutex;
    std::condition_variable changed;
    bool passed = false;
    std::chrono::steady_clock::time_point when;  // the time at which the mark passed
  };
  bool is_timed = false;  // constant once the event is made
  std::mutex mutex;
  std::shared_ptr<Mark> mark;  // Guarded by mutex; nullptr: never recorded
};

FakeCuda::FakeCuda(int num_devices) : num_devices_(num_devices) {
  for (int device = 0; device < num_devices; ++device) {
    uuids_.push_back("fake-gpu-" + std::to_string(device));
    pci_bus_ids_.push_back("fake-bus-" + std::to_string(device));
    default_streams_.push_back(std::make_shared<FakeStream>(device));
  }
}

FakeCuda::~FakeCuda() {
  streams_.clear();  // ends their threads, which may still write to the memory
  default_streams_.clear();
  for (const auto& [data, size_bytes] : allocations_) std::free(data);
}

void FakeCuda::fail(const std::string& function, nccl::CudaResult result, int num_good_calls) {
  std::lock_guard lock(mutex_);
  faults_[function] = {result, num_good_calls};
}

void FakeCuda::succeed_again(const std::string& function) {
  std::lock_guard lock(mutex_);
  faults_.erase(function);
}

void FakeCuda::hang(const std::string& function) {
  std::lock_guard lock(mutex_);
  hangs_.insert(function);
}

void FakeCuda::release_hangs() {
  std::lock_guard lock(mutex_);
  hangs_.clear();
  changed_.notify_all();
}

int FakeCuda::num_hanging() const {
  std::lock_guard lock(mutex_);
  return num_hanging_;
}

void FakeCuda::set_uuid(int device, std::string uuid) {
  std::lock_guard lock(mutex_);
  uuids_[static_cast<std::size_t>(device)] = std::move(uuid);
}

void FakeCuda::set_pci_bus_id(int device, std::string bus_id) {
  std::lock_guard lock(mutex_);
  pci_bus_ids_[static_cast<std::size_t>(device)] = std::move(bus_id);
}

nccl::CudaResult FakeCuda::fault(const std::string& function) {
  std::unique_lock lock(mutex_);
  ++num_hanging_;
  changed_.wait(lock, [&] { return !hangs_.contains(function); });
  --num_hanging_;
  const auto found = faults_.find(function);
  if (found == faults_.end() || found->second.num_good_calls-- > 0) return nccl::kCudaSuccess;
  return found->second.result;
}

std::shared_ptr<FakeStream> FakeCuda::find(nccl::Stream stream) {
  if (stream == nullptr) return default_streams_[static_cast<std::size_t>(current_device)];
  std::lock_guard lock(mutex_);
  const auto found = streams_.find(stream);
  DDPRUN_CHECK(found != streams_.end());  // otherwise a destroyed stream is used
  return found->second;
}

std::shared_ptr<FakeCuda::FakeEvent> FakeCuda::find_event(nccl::Event event) {
  std::lock_guard lock(mutex_);
  const auto found = events_.find(event);
  DDPRUN_CHECK(found != events_.end());  // otherwise a destroyed event is used
  return found->second;
}

void FakeCuda::enqueue(nccl::Stream stream, std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    if (captures(stream)) return capture_->graph.push_back(std::move(task));
  }
  find(stream)->enqueue(std::move(task));
}

bool FakeCuda::captures(nccl::Stream stream) const {
  return capture_ && capture_->streams.contains(stream);
}

nccl::CudaResult FakeCuda::break_capture(nccl::CudaResult result) {
  if (capture_) capture_->is_broken = true;
  return result;
}

void FakeCuda::begin_capture(nccl::Stream stream) {
  std::lock_guard lock(mutex_);
  DDPRUN_CHECK(!capture_ && streams_.contains(stream));
  capture_ = Capture{};
  capture_->streams.insert(stream);
}

std::optional<FakeCuda::Graph> FakeCuda::end_capture() {
  std::lock_guard lock(mutex_);
  const auto ended = std::exchange(capture_, std::nullopt);
  return ended->is_broken ? std::nullopt : std::optional(ended->graph);
}

void FakeCuda::replay(const Graph& graph, nccl::Stream stream) {
  for (const auto& task : graph) enqueue(stream, task);
}

int FakeCuda::num_live_objects() const {
  std::lock_guard lock(mutex_);
  return static_cast<int>(streams_.size() + events_.size() + allocations_.size()) - num_forgotten_;
}

void FakeCuda::forget_live_objects() {
  for (int device = 0; device < num_devices_; ++device) synchronize_streams(device);
  std::lock_guard lock(mutex_);
  num_forgotten_ = static_cast<int>(streams_.size() + events_.size() + allocations_.size());
}

nccl::CudaResult FakeCuda::device_count(int* count) {
  *count = num_devices_;
  return fault("device_count");
}

nccl::CudaResult FakeCuda::get_device(int* device) {
  *device = current_device;
  return fault("get_device");
}

nccl::CudaResult FakeCuda::set_device(int device) {
  if (const auto result = fault("set_device")) return result;
  if (device < 0 || device >= num_devices_) return kInvalidDevice;
  current_device = device;
  return nccl::kCudaSuccess;
}

nccl::CudaResult FakeCuda::device_uuid(int device, std::string* uuid) {
  if (const auto result = fault("device_uuid")) return result;
  if (device < 0 || device >= num_devices_) return kInvalidDevice;
  std::lock_guard lock(mutex_);
  *uuid = uuids_[static_cast<std::size_t>(device)];
  return nccl::kCudaSuccess;
}

nccl::CudaResult FakeCuda::device_pci_bus_id(int device, std::string* bus_id) {
  if (const auto result = fault("device_pci_bus_id")) return result;
  if (device < 0 || device >= num_devices_) return kInvalidDevice;
  std::lock_guard lock(mutex_);
  *bus_id = pci_bus_ids_[static_cast<std::size_t>(device)];
  return nccl::kCudaSuccess;
}

nccl::CudaResult FakeCuda::compute_capability(int, int* major, int* minor) {
  *major = 9;
  *minor = 0;
  return fault("compute_capability");
}

nccl::CudaResult FakeCuda::stream_create_high_priority(nccl::Stream* stream) {
  if (const auto result = fault("stream_create")) return result;
  auto created = std::make_shared<FakeStream>(current_device);
  *stream = reinterpret_cast<nccl::Stream>(created.get());
  std::lock_guard lock(mutex_);
  streams_[*stream] = std::move(created);
  return nccl::kCudaSuccess;
}

nccl::CudaResult FakeCuda::stream_destroy(nccl::Stream stream) {
  std::shared_ptr<FakeStream> dying;
  {
    std::lock_guard lock(mutex_);
    const auto found = streams_.find(stream);
    if (found == streams_.end()) return kInvalidValue;
    dying = std::move(found->second);
    streams_.erase(found);
  }
  return nccl::kCudaSuccess;
}

nccl::CudaResult FakeCuda::stream_synchronize(nccl::Stream stream) {
  {
    std::lock_guard lock(mutex_);
    if (captures(stream)) return break_capture(kCaptureUnsupported);
  }
  find(stream)->synchronize();
  return fault("stream_synchronize");
}

nccl::CudaResult FakeCuda::stream_is_capturing(nccl::Stream stream, bool* is_capturing) {
  if (const auto result = fault("stream_is_capturing")) return result;
  std::lock_guard lock(mutex_);
  *is_capturing = captures(stream);
  return nccl::kCudaSuccess;
}

nccl::CudaResult FakeCuda::stream_wait_event(nccl::Stream stream, nccl::Event event) {
  if (const auto result = fault("stream_wait_event")) return result;
  const auto found = find_event(event);
  {
    std::lock_guard lock(mutex_);
    if (captured_events_.contains(event)) {
      if (!capture_) return kCapturedEvent;
      capture_->streams.insert(stream);
      return nccl::kCudaSuccess;
    }
    if (captures(stream)) return break_capture(kCaptureIsolation);
  }
  std::shared_ptr<FakeEvent::Mark> mark;
  {
    std::lock_guard lock(found->mutex);
    mark = found->mark;
  }
  if (!mark) return nccl::kCudaSuccess;
  enqueue(stream, [mark] {
    std::unique_lock lock(mark->mutex);
    mark->changed.wait(lock, [&] { return mark->passed; });
  });
  return nccl::kCudaSuccess;
}

nccl::CudaResult FakeCuda::event_create(nccl::Event* event, bool is_timed) {
  if (const auto result = fault("event_create")) return result;
  auto created = std::make_shared<FakeEvent>();
  created->is_timed = is_timed;
  *event = reinterpret_cast<nccl::Event>(created.get());
  std::lock_guard lock(mutex_);
  events_[*event] = std::move(created);
  return nccl::kCudaSuccess;
}

nccl::CudaResult FakeCuda::event_destroy(nccl::Event event) {
  if (const auto result = fault("event_destroy")) return result;
  std::lock_guard lock(mutex_);
  captured_events_.erase(event);
  return events_.erase(event) == 1 ? nccl::kCudaSuccess : kInvalidValue;
}

nccl::CudaResult FakeCuda::event_record(nccl::Event event, nccl::Stream stream) {
  if (const auto result = fault("event_record")) return result;
  const auto found = find_event(event);
  {
    std::lock_guard lock(mutex_);
    captured_events_.erase(event);
    if (captures(stream)) {
      captured_events_.insert(event);
      return nccl::kCudaSuccess;
    }
  }
  auto mark = std::make_shared<FakeEvent::Mark>();
  {
    std::lock_guard lock(found->mutex);
    found->mark = mark;
  }
  enqueue(stream, [mark] {
    std::lock_guard lock(mark->mutex);
    mark->passed = true;
    mark->when = std::chrono::steady_clock::now();
    mark->changed.notify_all();
  });
  return nccl::kCudaSuccess;
}

nccl::CudaResult FakeCuda::event_query(nccl::Event event) {
  if (const auto result = fault("event_query")) return result;
  const auto found = find_event(event);
  {
    std::lock_guard lock(mutex_);
    if (captured_events_.contains(event)) return break_capture(kCapturedEvent);
  }
  std::lock_guard lock(found->mutex);
  if (!found->mark) return nccl::kCudaSuccess;
  std::lock_guard mark_lock(found->mark->mutex);
  return found->mark->passed ? nccl::kCudaSuccess : nccl::kCudaNotReady;
}

nccl::CudaResult FakeCuda::event_elapsed(float* milliseconds, nccl::Event begin, nccl::Event end) {
  if (const auto result = fault("event_elapsed")) return result;
  std::chrono::steady_clock::time_point when[2];
  for (int i = 0; i < 2; ++i) {
    const auto found = find_event(i == 0 ? begin : end);
    std::lock_guard lock(found->mutex);
    if (!found->is_timed || !found->mark) return kInvalidValue;
    std::lock_guard mark_lock(found->mark->mutex);
    if (!found->mark->passed) return nccl::kCudaNotReady;
    when[i] = found->mark->when;
  }
  *milliseconds = std::chrono::duration<float, std::milli>(when[1] - when[0]).count();
  return nccl::kCudaSuccess;
}

nccl::CudaResult FakeCuda::memory_allocate(void** data, std::size_t size_bytes) {
  if (const auto result = fault("memory_allocate")) return result;
  *data = std::aligned_alloc(256, (size_bytes + 255) / 256 * 256);
  if (*data == nullptr) return kOutOfMemory;
  std::memset(*data, 0xAB, size_bytes);  // new device memory has rubbish in it
  std::lock_guard lock(mutex_);
  allocations_[*data] = size_bytes;
  return nccl::kCudaSuccess;
}

void FakeCuda::synchronize_streams(int device) {
  std::vector<std::shared_ptr<FakeStream>> streams{
      default_streams_[static_cast<std::size_t>(device)]};
  {
    std::lock_guard lock(mutex_);
    for (const auto& [handle, stream] : streams_) {
      if (stream->device() == device) streams.push_back(stream);
    }
  }
  for (const auto& stream : streams) stream->synchronize();
}

// First waits for all work of the device, like cudaFree.
nccl::CudaResult FakeCuda::memory_free(void* data) {
  if (const auto result = fault("memory_free")) return result;
  synchronize_streams(current_device);
  std::lock_guard lock(mutex_);
  if (allocations_.erase(data) == 0) return kInvalidValue;
  std::free(data);
  return nccl::kCudaSuccess;
}

nccl::CudaResult FakeCuda::memory_set(void* data, int byte, std::size_t size_bytes,
                                      nccl::Stream stream) {
  if (const auto result = fault("memory_set")) return result;
  enqueue(stream, [=] { std::memset(data, byte, size_bytes); });
  return nccl::kCudaSuccess;
}

nccl::CudaResult FakeCuda::memory_copy(void* to, const void* from, std::size_t size_bytes,
                                       nccl::Stream stream) {
  enqueue(stream, [=] {
    if (size_bytes > 0) std::memcpy(to, from, size_bytes);
  });
  return nccl::kCudaSuccess;
}

std::string FakeCuda::error_text(nccl::CudaResult result) {
  if (result == kOutOfMemory) return "out of memory";
  return "fake CUDA error " + std::to_string(result);
}

}  // namespace ddprun::test
