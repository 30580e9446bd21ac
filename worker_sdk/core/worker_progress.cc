// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/worker_progress.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "common/error.h"

namespace ddprun {

WorkerProgress::WorkerProgress() {
  map(-1, MAP_PRIVATE | MAP_ANONYMOUS);
  page_->version = kProgressVersion;
  page_->magic = kProgressMagic;
}

WorkerProgress::WorkerProgress(const UniqueFd& memory) {
  struct stat info {};
  if (::fstat(memory.get(), &info) != 0) throw_system_error("fstat of the progress page", errno);
  if (info.st_size != static_cast<off_t>(kProgressPageBytes)) {
    throw Error(ErrorCode::kProtocol, "the agent's progress page has the wrong size");
  }
  map(memory.get(), MAP_SHARED);
  if (page_->magic == kProgressMagic && page_->version == kProgressVersion) return;
  ::munmap(page_, kProgressPageBytes);
  throw Error(ErrorCode::kProtocol, "the agent's progress page is of another version");
}

WorkerProgress::~WorkerProgress() { ::munmap(page_, kProgressPageBytes); }

void WorkerProgress::map(int fd, int flags) {
  void* mapped = ::mmap(nullptr, kProgressPageBytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (mapped == MAP_FAILED) throw_system_error("mmap of the progress page", errno);
  page_ = static_cast<ProgressPage*>(mapped);
}

void WorkerProgress::begin_step(std::uint64_t step) {
  if (!numbered_) {
    numbered_ = true;
    in_step_ = false;  // a counted one: its number means nothing here
    page_->own_count = 0;
    page_->steps_done = 0;
  }
  if (in_step_) end();
  begin(step);
}

void WorkerProgress::end_step() {
  if (in_step_) end();
}

void WorkerProgress::count_step() {
  if (numbered_) return;
  page_->own_count = 1;
  if (in_step_) end();
  begin(page_->step + 1);
}

void WorkerProgress::end_counted_step() {
  if (!numbered_ && in_step_) end();
}

void WorkerProgress::begin(std::uint64_t step) {
  in_step_ = true;
  page_->phase = static_cast<std::uint64_t>(ProgressPhase::kTrain);
  page_->step = step;
}

void WorkerProgress::end() {
  in_step_ = false;
  const std::uint64_t step = page_->step;
  page_->steps_done = step;
  if (first_ended_) return;
  first_ended_ = true;
  if (first_step_) first_step_(numbered_ ? step : 0);
}

void WorkerProgress::set_phase(ProgressPhase phase) {
  page_->phase = static_cast<std::uint64_t>(phase);
}

void WorkerProgress::collective_begun(CollectiveKind kind) {
  page_->last_collective.store(static_cast<std::uint64_t>(kind), std::memory_order_relaxed);
  page_->collectives_begun.fetch_add(1, std::memory_order_release);
}

void WorkerProgress::collective_done() {
  page_->collectives_done.fetch_add(1, std::memory_order_release);
}

StopRequest WorkerProgress::stop_request() const {
  return page_->stop_request.load(std::memory_order_acquire) == 0 ? StopRequest::kNone
                                                                  : StopRequest::kPreemption;
}

Clock::time_point WorkerProgress::stop_deadline() const {
  const std::chrono::nanoseconds since_boot(page_->stop_deadline.load(std::memory_order_acquire));
  return Clock::time_point(std::chrono::duration_cast<Clock::duration>(since_boot));
}

}  // namespace ddprun
