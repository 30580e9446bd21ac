// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/worker_progress.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <iterator>

#include "common/unique_fd.h"
#include "worker_sdk/core/flight_recorder.h"

namespace ddprun {
namespace {

// Maps a page at `address`, in place of the mapping there; nullptr: anywhere.
ProgressPage* map(int fd, int flags, void* address = nullptr) {
  if (address != nullptr) flags |= MAP_FIXED;
  void* mapped = ::mmap(address, kProgressPageBytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (mapped == MAP_FAILED) throw_system_error("mmap of the progress page", errno);
  return static_cast<ProgressPage*>(mapped);
}

void unmap(ProgressPage* page) { ::munmap(page, kProgressPageBytes); }

ProgressPage* map_checked(const UniqueFd& memory) {
  struct stat info {};
  if (::fstat(memory.get(), &info) != 0) throw_system_error("fstat of the progress page", errno);
  if (info.st_size != static_cast<off_t>(kProgressPageBytes)) {
    throw Error(ErrorCode::kProtocol, "the agent's progress page has the wrong size");
  }
  ProgressPage* page = map(memory.get(), MAP_SHARED);
  if (page->magic == kProgressMagic && page->version == kProgressVersion) return page;
  unmap(page);
  throw Error(ErrorCode::kProtocol, "the agent's progress page is of another version");
}

constexpr ProgressPage::Word ProgressPage::*kSumWords[] = {
    &ProgressPage::step_ns,          &ProgressPage::forward_ns, &ProgressPage::backward_ns,
    &ProgressPage::communication_ns, &ProgressPage::exposed_ns, &ProgressPage::loader_ns,
    &ProgressPage::step_bytes,
};

}  // namespace

// The memory is shared, so that move_to() can have a second view of it.
WorkerProgress::WorkerProgress(std::size_t num_recorded)
    : page_(map(-1, MAP_SHARED | MAP_ANONYMOUS)),
      recorder_(std::make_unique<FlightRecorder>(num_recorded, page_->operations)) {
  page_->version = kProgressVersion;
  page_->magic = kProgressMagic;
}

WorkerProgress::WorkerProgress(const UniqueFd& memory)
    : page_(map_checked(memory)),
      recorder_(
          std::make_unique<FlightRecorder>(FlightRecorder::kDefaultCapacity, page_->operations)) {}

// Other threads may be counting collectives. Their counts go to the old page until page_ is the new
// one. Counts that came after the copy of the old ones are added at the end.
void WorkerProgress::move_to(const UniqueFd& memory) {
  ProgressPage* fresh = map_checked(memory);
  constexpr std::size_t kOneMoreView = 0;
  void* view = ::mremap(page_, kOneMoreView, kProgressPageBytes, MREMAP_MAYMOVE);
  if (view == MAP_FAILED) {
    const int error = errno;
    unmap(fresh);
    throw_system_error("mremap of the progress page", error);
  }
  auto* old = static_cast<ProgressPage*>(view);
  const std::uint64_t begun = old->collectives_begun, done = old->collectives_done;
  fresh->own_count = old->own_count.load();
  fresh->steps_done = old->steps_done.load();
  fresh->step = old->step.load();
  fresh->phase = old->phase.load();
  fresh->loss = old->loss.load();
  fresh->samples = old->samples.load();
  fresh->num_reports = old->num_reports.load();
  for (const auto word : kSumWords) (fresh->*word) = (old->*word).load();
  fresh->steps_begun = fresh->steps_timed = old->steps_timed.load();
  fresh->collectives_begun = begun;
  fresh->collectives_done = done;
  fresh->last_collective = old->last_collective.load();
  fresh->loading_ns = old->loading_ns.load();
  map(memory.get(), MAP_SHARED, page_);
  page_->collectives_begun += old->collectives_begun - begun;
  page_->collectives_done += old->collectives_done - done;
  recorder_->publish();
  unmap(old);
  unmap(fresh);
  first_ended_ = false;  // the first step was reported to no agent
}

WorkerProgress::~WorkerProgress() { unmap(page_); }

void WorkerProgress::begin_step(std::uint64_t step) {
  if (!numbered_) {
    numbered_ = true;
    in_step_ = false;  // a counted step's number means nothing here
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
  if (begun_ && !begun_()) begun_ = nullptr;
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
  if (first_step_) first_step_(numbered_ ? step : 0, std::chrono::nanoseconds(connecting_.load()));
}

void WorkerProgress::set_phase(ProgressPhase phase) {
  page_->phase = static_cast<std::uint64_t>(phase);
}

void WorkerProgress::report(double loss, std::uint64_t num_samples) {
  page_->loss = std::bit_cast<std::uint64_t>(loss);
  page_->samples += num_samples;
  ++page_->num_reports;
}

void WorkerProgress::add_parts(const StepParts& parts) {
  const auto nanoseconds = [](std::chrono::nanoseconds time) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(0, time.count()));
  };
  const std::uint64_t values[] = {
      nanoseconds(parts.step),
      nanoseconds(parts.forward),
      nanoseconds(parts.backward),
      nanoseconds(parts.communication),
      nanoseconds(parts.exposed),
      nanoseconds(parts.loader),
      parts.bytes,
  };
  static_assert(std::size(values) == std::size(kSumWords));
  ++page_->steps_begun;
  for (std::size_t i = 0; i < std::size(values); ++i) (page_->*kSumWords[i]) += values[i];
  ++page_->steps_timed;
}

void WorkerProgress::add_loading(std::chrono::nanoseconds waited) {
  page_->loading_ns += static_cast<std::uint64_t>(waited.count());
}

void WorkerProgress::collective_begun(CollectiveKind kind) {
  page_->last_collective.store(static_cast<std::uint64_t>(kind), std::memory_order_relaxed);
  page_->collectives_begun.fetch_add(1, std::memory_order_release);
}

void WorkerProgress::collective_done() {
  page_->collectives_done.fetch_add(1, std::memory_order_release);
}

void WorkerProgress::on_operation_failed(std::function<void(const OperationFailure&)> call) {
  const std::lock_guard lock(failed_mutex_);
  failed_ = std::move(call);
}

// Failures are reported one after the other: the call writes one file.
void WorkerProgress::operation_failed(const OperationFacts& facts, const Error& error,
                                      std::vector<int> missing, int size,
                                      std::chrono::milliseconds waited) {
  const ErrorCode code = error.code();
  if (code != ErrorCode::kTimeout && code != ErrorCode::kPeerLost && code != ErrorCode::kProtocol) {
    return;
  }
  const std::lock_guard lock(failed_mutex_);
  if (!failed_) return;
  failed_({facts, to_string(code), error.what(), std::move(missing), size, waited});
}

StopRequest WorkerProgress::stop_request() const {
  return page_->stop_request.load(std::memory_order_acquire) == 0 ? StopRequest::kNone
                                                                  : StopRequest::kPreemption;
}

Clock::time_point WorkerProgress::stop_deadline() const {
  const std::chrono::nanoseconds since_boot(page_->stop_deadline.load(std::memory_order_acquire));
  return Clock::time_point(std::chrono::duration_cast<Clock::duration>(since_boot));
}

bool WorkerProgress::peer_lost() const {
  return page_->peer_lost.load(std::memory_order_acquire) != 0;
}

}  // namespace ddprun
