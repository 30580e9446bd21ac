// SPDX-License-Identifier: Apache-2.0
// The jobs of an earlier term that a rendezvous has found in its journal, and may not go on with
// before enough of their own nodes follow it (docs/rendezvous.md, "Terms"). It stands before the
// JobTable: events go in here first. Pure: no I/O, clock, thread or randomness.
//
//   held      its agents wait (parked) and are asked; nothing of it is in the table
//   won       its rows are to be restored, its agents go on to the table as each has voted
//   stale     another rendezvous has it: its agents are sent on, their connections closed; held
//             again where another one gives its term up in time
//   given up  too few came in time: its rows are erased, the table knows nobody of it
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "rendezvous/journal/row.h"
#include "rendezvous/membership/held_mark.h"
#include "rendezvous/membership/machine.h"
#include "rendezvous/membership/state.h"
#include "rendezvous/membership/voters.h"

namespace ddprun::membership {

// Of a rendezvous that begins to lead.
struct Terms {
  std::string own = {};  // each Welcome has it; drawn at random
  // In which the journal's jobs were led: the term before, and those before that with which some
  // node may still be, newest first. Empty: in `own`, and only jobs are held that have a mark.
  std::vector<std::string> bases = {};
  // This very rendezvous led in the newest of them. A job that it only held then is claimed as it
  // was then, by its mark (held_marks()).
  bool is_incumbent = false;
  // `own` was begun before: jobs without a mark are its own, and needn't be held. Their nodes that
  // have not been here since are asked with the bases all the same.
  bool goes_on = false;
  // The journal before its last batch, where the one that led then may not know that batch to be
  // kept; only the rows jobs/… of it count. nullopt: it knows.
  std::optional<journal::Rows> rows_before = std::nullopt;
};

// Of points in time in the rows of a journal.
struct RowsClock {
  Clock::duration shift{};  // to be added to them: journal::Content::clock_shift
  std::string boot = {};    // of whose clock they are then, this machine's (common/boot_id.h)
};

// The marks (held_mark.h) of the jobs in `rows`, for the commit that begins the term: without them
// a rendezvous that begins anew would take what it had not won for its own. begin() has them again.
journal::Batch held_marks(const Terms& terms, const journal::Rows& rows, const RowsClock& clock);

class HeldJobs {
 public:
  // Takes the jobs out of `rows`: those of a job number are named KIND/NUMBER/….
  HeldJobs(const Terms& terms, journal::Rows& rows, const RowsClock& clock, Clock::time_point now);

  struct Restored {
    journal::Rows rows;
    Clock::duration clock_shift;  // to be added to the points in time in them
  };
  struct Outcome {
    Actions actions;  // to be carried out as the table's: once all before them is kept
    std::vector<Restored> restored;  // jobs that are won, for JobTable::restore
    // Of the journal: marks; the rows of jobs that are given up, or stale for so long.
    journal::Batch changes;
    std::vector<event::Message> joins;  // for the table, in this order, once that is restored
    bool passes = true;                 // the event itself: for the table, after all that
  };
  // Once, first: the jobs that nobody has to be asked for.
  Outcome begin();
  Outcome step(const Event& event, Clock::time_point now);
  // Another rendezvous has given these terms up: in each of them nothing was decided, and nothing
  // will be, and what it went on from is among the bases. A node that follows one may follow this
  // one.
  Outcome add_bases(const std::vector<std::string>& terms);
  // When Tick is due; nullopt: nothing waits.
  std::optional<Clock::time_point> next_deadline() const;

  // Of the jobs that were taken out: new ones need larger numbers.
  std::uint64_t last_number() const { return last_number_; }
  // An agent that waits here: the table doesn't know it.
  bool is_parked(ConnectionId connection) const { return by_connection_.contains(connection); }
  std::size_t num_held() const;
  std::vector<JobStatus> status() const;  // of those
  // Those, and stale ones whose time is not over: they may be held again.
  std::size_t num_unsettled() const;
  bool has_won_any() const;  // of jobs that have voters
  // Where the other rendezvous that may have a stale job is not heard its name stays closed to new
  // agents, however much later they come. At first it is heard.
  void hear_peer(bool is_heard) { hears_peer_ = is_heard; }

  // An agent that waits is sent to its other endpoints then; its vote stands.
  static constexpr std::chrono::milliseconds kParkLimit{10'000};

 private:
  using TimePoint = Clock::time_point;
  using Ticket = std::uint64_t;  // counts Joins that wait
  enum class State { kHeld, kWon, kStale };
  struct Member {
    std::string session, name;  // describe()
    NodeStatus status;
    bool granted = false, denied = false;
  };
  struct HeldJob {
    State state = State::kHeld;
    std::string run_id;
    JobSettings settings;
    std::uint64_t round = 0;
    HeldMark mark;
    Ballot ballot;
    journal::Rows rows;                   // none once it is won
    std::vector<Member> members = {};     // all nodes, voters or not
    std::optional<TimePoint> until = {};  // kHeld: given up; kStale: for good
    std::chrono::milliseconds time_limit{0};
    bool said_denied = false;
  };
  struct MemberName {
    std::uint64_t job = 0;
    std::size_t index = 0;
  };
  struct Parked {
    event::Message join;
    std::string agent;
    std::uint64_t job = 0;
    std::optional<std::size_t> member;
    TimePoint until{};
    std::size_t asked = 0;  // with which of the bases
  };

  void take(std::uint64_t number, journal::Rows rows, HeldMark mark, const JobState& state,
            TimePoint now);
  void take_unheld(std::uint64_t number, journal::Rows rows, const Terms& terms,
                   const RowsClock& clock, const JobState& state);
  HeldJob& add(std::uint64_t number, journal::Rows rows, HeldMark mark, const JobState& state);
  std::optional<MemberName> member_of(const Join& join) const;
  std::optional<std::uint64_t> job_for_new(const Join& join) const;

  void join(const event::Message& message, const Join& join, TimePoint now, Outcome& out);
  const Parked& park(const event::Message& message, const Join& join, std::uint64_t job,
                     std::optional<std::size_t> member, TimePoint now, Outcome& out);
  void ask(const Parked& parked, Outcome& out) const;
  void vote(ConnectionId connection, const Vote& vote, Outcome& out);
  bool may_follow_yet(Parked& parked, const Vote& vote) const;
  void denied(HeldJob& job, Member& member, const Vote& vote, Outcome& out);
  void win(std::uint64_t number, HeldJob& job, Outcome& out);
  void give_up(std::uint64_t number, HeldJob& job, Outcome& out);
  void tick(TimePoint now, Outcome& out);
  static void erase_rows(const HeldJob& job, Outcome& out);
  static void put_mark(std::uint64_t number, HeldJob& job, Outcome& out);
  static void erase_mark(std::uint64_t number, HeldJob& job, Outcome& out);
  // The Join leaves, for the table or for good.
  event::Message unpark(Ticket ticket);
  void close(Ticket ticket, Outcome& out);
  std::vector<Ticket> parked_of(std::uint64_t job) const;
  // Of an agent process, whatever session it has.
  static std::string agent_name(const Join& join);
  static void log(Outcome& out, LogLevel level, const std::string& run_id, std::string text);

  const std::string own_;
  bool hears_peer_ = true;
  std::uint64_t last_number_ = 0;
  Outcome first_;                          // for begin()
  std::map<std::uint64_t, HeldJob> jobs_;  // by number; those given up are gone
  std::unordered_map<std::string, MemberName> by_session_, by_agent_;
  std::map<Ticket, Parked> parked_;
  Ticket next_ticket_ = 1;
  std::unordered_map<ConnectionId, Ticket> by_connection_;
  std::unordered_map<std::string, Ticket> parked_agents_;
};

}  // namespace ddprun::membership
