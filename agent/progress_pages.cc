// SPDX-License-Identifier: Apache-2.0
#include "agent/progress_pages.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "common/error.h"
#include "common/memory.h"
#include "common/text.h"

namespace ddprun::agent {
namespace {

// Makes a file that can't shrink: a worker that could shrink it would kill the agent by SIGBUS.
UniqueFd make_memory() {
  UniqueFd memory = make_memory_file("ddprun-progress", MFD_ALLOW_SEALING);
  if (::ftruncate(memory.get(), kProgressPageBytes) != 0) {
    throw_system_error("ftruncate of a progress page", errno);
  }
  if (::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw_system_error("sealing a progress page", errno);
  }
  return memory;
}

template <typename Enum>
Enum known(std::uint64_t value, Enum last) {
  return value <= static_cast<std::uint64_t>(last) ? static_cast<Enum>(value) : Enum{};
}

std::uint64_t load(const ProgressPage::Word& word) { return word.load(std::memory_order_acquire); }

// The worker writes the words while they are read, so the name may be a mixture of two.
std::string seen_collective_of(const ProgressPage& page) {
  std::string name;
  for (const auto& word : page.seen_collective) {
    const std::uint64_t bytes = load(word);
    for (int shift = 0; shift < 64; shift += 8) {
      const auto letter = static_cast<char>(bytes >> shift & 0xff);
      if ((letter >= 'a' && letter <= 'z') || letter == '_') name += letter;
    }
  }
  return name.empty() ? "" : concat(name, " #", load(page.seen_collectives));
}

// Reads the sums of the steps. A worker that is stopped, or dies, while it writes them leaves them
// inconsistent for good.
std::optional<StepSums> read_steps(const ProgressPage& words) {
  constexpr int kTries = 4;
  for (int i = 0; i < kTries; ++i) {
    StepSums sums;
    sums.num_steps = load(words.steps_timed);
    sums.step = load(words.step_ns);
    sums.forward = load(words.forward_ns);
    sums.backward = load(words.backward_ns);
    sums.communication = load(words.communication_ns);
    sums.exposed = load(words.exposed_ns);
    sums.loader = load(words.loader_ns);
    sums.bytes = load(words.step_bytes);
    if (load(words.steps_begun) != sums.num_steps) continue;
    return sums.num_steps > 0 ? std::optional(sums) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

ProgressPages::~ProgressPages() { release(); }

void ProgressPages::release() {
  for (const Page& page : pages_) {
    if (page.mapped != nullptr) ::munmap(page.mapped, kProgressPageBytes);
  }
  pages_.clear();
}

void ProgressPages::begin_round(std::uint64_t round, int num_workers) {
  release();
  round_ = round;
  try {
    for (int i = 0; i < num_workers; ++i) {
      Page& page = pages_.emplace_back();
      page.memory = make_memory();
      void* mapped = ::mmap(nullptr, kProgressPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                            page.memory.get(), 0);
      if (mapped == MAP_FAILED) throw_system_error("mmap of a progress page", errno);
      page.mapped = static_cast<ProgressPage*>(mapped);
      page.mapped->version = kProgressVersion;
      page.mapped->magic = kProgressMagic;
    }
  } catch (const Error&) {
    release();
    throw;
  }
}

ProgressSample ProgressPages::read(int local_rank) const {
  const Page& page = pages_.at(static_cast<std::size_t>(local_rank));
  const ProgressPage& words = *page.mapped;
  ProgressSample sample;
  sample.connected = page.connected;
  sample.phase = known(load(words.phase), ProgressPhase::kTearDown);
  sample.step = load(words.step);
  sample.steps_done = load(words.steps_done);
  sample.own_count = load(words.own_count) != 0;
  sample.collectives_begun = load(words.collectives_begun);
  sample.collectives_done = load(words.collectives_done);
  sample.last_collective = known(load(words.last_collective), CollectiveKind::kLast);
  sample.num_reports = load(words.num_reports);
  sample.loss_bits = load(words.loss);
  sample.samples = load(words.samples);
  sample.steps = read_steps(words);
  sample.stop_requested = load(words.stop_request) != 0;
  return sample;
}

std::optional<ProgressWords> ProgressPages::read_seen(int local_rank) const {
  const ProgressPage& page = *pages_.at(static_cast<std::size_t>(local_rank)).mapped;
  ProgressWords words;
  words.phase = ProgressPhase::kTrain;
  words.step = words.steps_done = load(page.seen_step);
  if (words.step == 0) return std::nullopt;
  words.gpu_peak_bytes = load(page.seen_gpu_peak_bytes);
  words.skipped_steps = load(page.seen_skipped);
  words.num_reports = load(page.seen_reports);
  words.loss_bits = load(page.seen_loss);
  words.samples = load(page.seen_samples);
  words.seen_collective = seen_collective_of(page);
  StepSums sums;
  sums.num_steps = load(page.seen_timed);
  sums.step = load(page.seen_step_ns);
  sums.loader = load(page.seen_loader_ns);
  sums.forward = load(page.seen_forward_ns);
  sums.backward = load(page.seen_backward_ns);
  sums.communication = load(page.seen_communication_ns);
  sums.exposed = load(page.seen_exposed_ns);
  sums.bytes = load(page.seen_step_bytes);
  // Otherwise the observer writes them now: the next look has them.
  if (sums.num_steps > 0 && load(page.seen_begun) == sums.num_steps) words.steps = sums;
  return words;
}

std::vector<CommunicatorState> ProgressPages::communicators(int local_rank) const {
  constexpr std::uint64_t kMaxRanks = 1 << 24;
  std::vector<CommunicatorState> states;
  const Page& page = pages_.at(static_cast<std::size_t>(local_rank));
  for (std::uint32_t number = 0; number < kOperationSlots; ++number) {
    const OperationSlot& slot = page.mapped->operations[number];
    CommunicatorState state;
    state.communicator = number;
    state.size = static_cast<int>(std::min(load(slot.size), kMaxRanks));
    if (state.size == 0) continue;
    state.done = load(slot.done);
    if (const std::uint64_t sequence = load(slot.sequence); sequence != 0) {
      OperationFacts facts;
      unpack_facts(load(slot.facts), facts);
      facts.count = load(slot.count);
      facts.communicator = number;
      facts.sequence = sequence;
      state.open = facts;
      state.begun_ns = load(slot.begun);
    }
    states.push_back(state);
  }
  return states;
}

int ProgressPages::memory(int local_rank) const {
  return pages_.at(static_cast<std::size_t>(local_rank)).memory.get();
}

void ProgressPages::set_connected(int local_rank) {
  pages_.at(static_cast<std::size_t>(local_rank)).connected = true;
}

std::uint64_t ProgressPages::last_step() const {
  std::uint64_t last = 0;
  for (const Page& page : pages_) {
    if (load(page.mapped->own_count) == 0) last = std::max(last, load(page.mapped->steps_done));
  }
  return last;
}

void ProgressPages::request_stop(StopRequest request, Clock::time_point until) {
  const auto nanoseconds =
      std::chrono::duration_cast<std::chrono::nanoseconds>(until.time_since_epoch()).count();
  for (const Page& page : pages_) {
    page.mapped->stop_deadline = static_cast<std::uint64_t>(nanoseconds);
    // This word is written last, since workers look at it first.
    page.mapped->stop_request = static_cast<std::uint64_t>(request);
  }
}

void ProgressPages::tell_peer_lost() {
  for (const Page& page : pages_) page.mapped->peer_lost = 1;
}

}  // namespace ddprun::agent
