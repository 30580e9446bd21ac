// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/host/node_group.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <map>

#include "common/check.h"
#include "common/text.h"
#include "common/throw_error.h"

namespace ddprun::host {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr auto kSpinTime = microseconds{2};
constexpr int kYields = 60;
// Longest time until a failure is seen by a rank that fell asleep just as it was posted.
constexpr auto kLongestSleep = milliseconds{50};

bool reached(std::uint32_t value, std::uint32_t target) {
  return static_cast<std::int32_t>(value - target) >= 0;
}

bool reached(const Flag& flag, std::uint32_t target) {
  return reached(flag.value.load(std::memory_order_acquire), target);
}

void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void futex_wake_all(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, 0x7fffffff, nullptr, nullptr, 0);
}

std::string absent_text(const RollCallNote& note) {
  if (note.num_absent == 0) return "the network: every rank is in the call";
  std::vector<std::int32_t> ranks(
      note.absent, note.absent + std::min<std::size_t>(note.num_absent, RollCallNote::kMaxNamed));
  std::ranges::sort(ranks);
  std::string text = ranks.size() > 1 ? "ranks" : "rank";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += concat(i == 0 ? " " : ", ", ranks[i]);
  if (note.num_absent > ranks.size())
    text += concat(" and ", note.num_absent - ranks.size(), " more");
  return text;
}

}  // namespace

Topology::Topology(const std::vector<int>& node_rank_of, int rank)
    : rank_(rank), node_index_of_(node_rank_of.size()), local_index_of_(node_rank_of.size()) {
  DDPRUN_CHECK(rank >= 0 && static_cast<std::size_t>(rank) < node_rank_of.size());
  std::map<int, std::vector<int>> members;
  for (std::size_t r = 0; r < node_rank_of.size(); ++r) {
    members[node_rank_of[r]].push_back(static_cast<int>(r));
  }
  std::size_t position = 0;
  for (auto& [node_rank, ranks] : members) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const auto member = static_cast<std::size_t>(ranks[i]);
      node_index_of_[member] = static_cast<int>(ranks_of_node_.size());
      local_index_of_[member] = static_cast<int>(i);
    }
    first_position_.push_back(position);
    position += ranks.size();
    const int count = static_cast<int>(ranks.size());
    num_carriers_ = num_carriers_ == 0 ? count : std::min(num_carriers_, count);
    max_ranks_per_node_ = std::max(max_ranks_per_node_, count);
    ranks_of_node_.push_back(std::move(ranks));
  }
}

void NodeGroup::publish(Flag& flag, std::uint32_t value) {
  // Sequentially consistent on both sides: either the sleeper sees the value, or this rank sees the
  // sleeper.
  flag.value.store(value, std::memory_order_seq_cst);
  if (flag.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(flag.value);
}

void NodeGroup::sleep_on(Flag& flag, std::uint32_t seen, Clock::duration at_most) {
  const auto nanoseconds = std::chrono::nanoseconds(at_most).count();
  const timespec limit{.tv_sec = static_cast<time_t>(nanoseconds / 1'000'000'000),
                       .tv_nsec = static_cast<long>(nanoseconds % 1'000'000'000)};
  flag.sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (flag.value.load(std::memory_order_seq_cst) == seen && !failed()) {
    ::syscall(SYS_futex, &flag.value, FUTEX_WAIT, seen, &limit, nullptr, 0);
  }
  flag.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void NodeGroup::wait_for(Flag& flag, std::uint32_t value, int local, const Call& call) {
  while (!wait_briefly(flag, value, local, call)) {
  }
}

bool NodeGroup::wait_briefly(Flag& flag, std::uint32_t value, int local, const Call& call) {
  if (reached(flag, value)) return true;
  const Clock::time_point spin_until = Clock::now() + kSpinTime;
  do {
    for (int i = 0; i < 16; ++i) {
      if (reached(flag, value)) return true;
      cpu_relax();
    }
  } while (Clock::now() < spin_until);
  for (int i = 0; i < kYields; ++i) {
    ::sched_yield();
    if (reached(flag, value)) return true;
    if (failed()) break;
  }
  return wait_a_while(flag, value, local, call);
}

// Checks once everything that can end a wait, then sleeps. True: the value is reached.
bool NodeGroup::wait_a_while(Flag& flag, std::uint32_t value, int local, const Call& call) {
  const std::uint32_t seen = flag.value.load(std::memory_order_acquire);
  if (reached(seen, value)) return true;
  const bool left = control(local).left.load(std::memory_order_acquire) != 0;
  const bool broken = failed();
  if (left || broken) {
    if (reached(flag, value)) return true;  // the rank reached it before it left
    throw_if_failed(call.text());
    throw_error(ErrorCode::kPeerLost, "rank ", rank_of(local),
                " has destroyed its communicator while rank ", topology_.rank(),
                " waited for it in ", call.text());
  }
  const Clock::duration remaining = call.deadline.remaining();
  if (remaining == Clock::duration::zero()) throw_timeout(who_is_behind(local), call);
  sleep_on(flag, seen, std::min<Clock::duration>(remaining, kLongestSleep));
  return reached(flag, value);
}

void NodeGroup::wait_for_all(FlagMember which, std::uint32_t value, const Call& call) {
  for (int local = 0; local < num_local(); ++local) {
    if (local != local_index()) wait_for(control(local).*which, value, local, call);
  }
}

// The ranks furthest behind delay the others. If one of them waits for another node, the rank that
// it waits for is to blame.
std::string NodeGroup::who_is_behind(int waiting_for) {
  const auto progress = [this](int local) {
    const RankControl& rank = control(local);
    const RankControl& own = control(local_index());
    const auto distance = [](const Flag& theirs, const Flag& ours) {
      return static_cast<std::int32_t>(theirs.value.load(std::memory_order_relaxed) -
                                       ours.value.load(std::memory_order_relaxed));
    };
    return static_cast<long>(distance(rank.entered, own.entered)) * 1'000'000 +
           distance(rank.copied, own.copied) + distance(rank.reduced, own.reduced);
  };
  long least = progress(waiting_for);
  for (int local = 0; local < num_local(); ++local) {
    if (local != local_index()) least = std::min(least, progress(local));
  }
  std::string missing;
  int num_missing = 0;
  std::vector<int> absent;
  for (int local = 0; local < num_local(); ++local) {
    if (local == local_index() || progress(local) != least) continue;
    const int elsewhere = control(local).waits_for.load(std::memory_order_relaxed);
    missing += num_missing++ == 0 ? "" : ", ";
    absent.push_back(elsewhere != 0 ? elsewhere - 1 : rank_of(local));
    missing += elsewhere != 0
                   ? concat(elsewhere - 1, " (for which rank ", rank_of(local), " waits)")
                   : std::to_string(rank_of(local));
  }
  set_absent(std::move(absent));
  return (num_missing > 1 ? "ranks " : "rank ") + missing;
}

void NodeGroup::set_absent(std::vector<int> ranks) {
  std::ranges::sort(ranks);
  const std::lock_guard lock(absent_mutex_);
  absent_ = std::move(ranks);
}

void NodeGroup::throw_timeout(const std::string& supposed, const Call& call, int supposed_rank) {
  std::string who = supposed;
  if (supposed_rank >= 0) set_absent({supposed_rank});
  if (roll_call_ && call.is_collective()) {
    const std::optional<RollCallNote> note = roll_call_(call.header.sequence);
    throw_if_failed(call.text());
    if (note && note->deviator >= 0) {
      throw Error(ErrorCode::kProtocol,
                  different_calls(note->caller, note->call, note->deviator, note->deviation));
    }
    if (note) {
      who = absent_text(*note);
      const auto named = std::min<std::size_t>(note->num_absent, RollCallNote::kMaxNamed);
      set_absent({note->absent, note->absent + named});
    }
  }
  throw_error(ErrorCode::kTimeout, call.text(), " on rank ", topology_.rank(), " timed out after ",
              call.timeout.count(), " ms: waiting for ", who);
}

void NodeGroup::post_failure(FailureKind kind, int rank, std::string_view text) {
  {
    const std::lock_guard lock(post_mutex_);
    if (!posted_ && !failed()) {
      posted_ = true;
      FailureRecord& record = own_control().failure;
      record.kind = kind;
      record.rank = rank;
      const std::size_t length = std::min(text.size(), sizeof record.text - 1);
      std::memcpy(record.text, text.data(), length);
      record.text[length] = '\0';
      std::uint32_t nobody = 0;
      node_control().failed_by.compare_exchange_strong(
          nobody, static_cast<std::uint32_t>(local_index() + 1), std::memory_order_acq_rel);
    }
  }
  wake_everybody();
  if (listener_) listener_();
}

FailureRecord NodeGroup::failure() const {
  const std::uint32_t reporter = node_control().failed_by.load(std::memory_order_acquire);
  FailureRecord record = control(static_cast<int>(reporter) - 1).failure;
  record.text[sizeof record.text - 1] = '\0';
  return record;
}

void NodeGroup::throw_if_failed(const std::string& during) {
  if (!failed()) return;
  if (listener_) listener_();
  const FailureRecord record = failure();
  if (record.kind == FailureKind::kMismatch) {
    throw_error(ErrorCode::kProtocol, during, " of rank ", topology_.rank(),
                " ended: ", record.text);
  }
  if (record.kind == FailureKind::kAborted && record.rank == topology_.rank()) {
    throw_error(ErrorCode::kAborted, during, " ended: aborted: ", record.text);
  }
  throw_error(ErrorCode::kPeerLost, "rank ", record.rank,
              record.kind == FailureKind::kAborted ? " aborted" : " was lost", " during ", during,
              " of rank ", topology_.rank(), ": ", record.text);
}

void NodeGroup::wake_everybody() {
  for (int local = 0; local < num_local(); ++local) {
    RankControl& rank = control(local);
    for (FlagMember which : {&RankControl::entered, &RankControl::copied, &RankControl::reduced}) {
      futex_wake_all((rank.*which).value);
    }
  }
}

void NodeGroup::leave() {
  own_control().left.store(1, std::memory_order_release);
  wake_everybody();
}

}  // namespace ddprun::host
