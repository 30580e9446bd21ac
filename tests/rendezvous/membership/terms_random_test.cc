// SPDX-License-Identifier: Apache-2.0
// Random worlds of two rendezvous that claim the same job, term after term, and of agents that each
// have one register: connections break, messages are lost with them, leaders begin anew. What must
// hold: of those that claim one term at most one wins the job; it restores nothing older than what
// any of those whose votes it has was welcomed with; and nobody takes a welcome of a term that it
// has not granted.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>

#include "rendezvous/membership/held_jobs.h"
#include "rendezvous/membership/term_register.h"
#include "tests/rendezvous/membership/job_rows_of.h"
#include "tests/support/catch.h"

namespace ddprun::membership::testing {
namespace {

using namespace std::chrono_literals;

// One version of the job: its round counts them.
struct Version {
  std::uint64_t number = 1;
  std::vector<std::string> members;
};

struct Leader {
  std::string term;
  bool is_incumbent = false;
  bool goes_on = false;
  Version last;                   // that it has rows of
  std::optional<Version> before;  // the batch before, where the other may know no more
  std::vector<std::string> bases;
  journal::Rows journal;
  std::unique_ptr<HeldJobs> jobs;
  bool has_won = false;
};

class TermsWorld {
 public:
  enum class Bug {
    kNone,
    kForgetsMarks,  // one that begins anew takes what it only held for its own
    kGivesUpAll,    // a term is given up to one that does not know what that went on from
  };
  explicit TermsWorld(std::uint64_t seed, Bug bug = Bug::kNone)
      : random_(seed),
        forgets_marks_(bug == Bug::kForgetsMarks),
        gives_up_all_(bug == Bug::kGivesUpAll) {}

  // What was violated; nullopt: nothing.
  std::optional<std::string> run() {
    const int num_agents = pick(1, 5);
    for (int i = 0; i < num_agents; ++i) {
      const std::string name(1, static_cast<char>('a' + i));
      agents_[name].follows.welcomed("t0");
      version_.members.push_back(name);
    }
    bases_ = {"t0"};
    const int num_terms = pick(1, 4);
    for (int i = 0; i < num_terms && num_losses == 0 && !violation_; ++i) claim_term();
    return violation_;
  }
  int num_wins = 0, num_losses = 0;

 private:
  struct Agent {
    TermRegister follows;
    std::uint64_t version = 1;  // the newest that it was told of
    std::optional<int> at;      // which leader it is connected to
    ConnectionId connection = 0;
    bool is_welcome = false;
    std::deque<RendezvousMessage> inbox;
    std::deque<AgentMessage> outbox;
  };

  int pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  bool chance(int percent) { return pick(1, 100) <= percent; }

  // Both go on after the newest of bases_: the one that led in it, and the one that it mirrored to.
  void claim_term() {
    Version before = version_, after = version_;
    const bool has_last_batch = chance(50);
    if (has_last_batch) {
      ++after.number;
      std::ranges::shuffle(after.members, random_);
      if (after.members.size() > 1 && chance(50)) after.members.pop_back();
      if (chance(30)) after.members = all_names();
    }
    // Where the one that led in it knows of that batch, agents may have heard of it.
    const bool knows_it = has_last_batch && chance(50);
    if (knows_it) {
      for (auto& [name, agent] : agents_) {
        if (agent.follows.follows() == bases_.front() && chance(60)) agent.version = after.number;
      }
    }
    leaders_[0] = new_leader(true, !has_last_batch || knows_it ? after : before, std::nullopt);
    leaders_[1] = new_leader(false, after, has_last_batch ? std::optional(before) : std::nullopt);
    for (int which = 0; which < 2; ++which) {
      Leader& leader = leaders_[which];
      leader.journal = rows_of(job_state(leader.last.number, leader.last.members));
      won_[which] = false;
      begin(which);
    }
    for (auto& [name, agent] : agents_) lose(agent);
    for (int i = pick(10, 120); i > 0 && !violation_; --i) turn();
    for (int which = 0; which < 2; ++which) {
      const Leader& leader = leaders_[which];
      if (!won_[which]) continue;
      bases_ = leader.bases;
      bases_.insert(bases_.begin(), leader.term);
      version_ = leader.last;
    }
    ++(won_[0] || won_[1] ? num_wins : num_losses);
  }

  Leader new_leader(bool is_incumbent, Version last, std::optional<Version> before) {
    Leader leader;
    leader.term = concat("t", ++num_terms_);
    leader.is_incumbent = is_incumbent;
    leader.last = std::move(last);
    leader.before = std::move(before);
    leader.bases = bases_;
    return leader;
  }

  void begin(int which) {
    Leader& leader = leaders_[which];
    journal::Rows rows = leader.journal;
    std::optional<journal::Rows> before;
    if (leader.before) {
      before = rows_of(job_state(leader.before->number, leader.before->members));
    }
    Terms terms;
    terms.own = leader.term;
    terms.bases = leader.bases;
    terms.is_incumbent = leader.is_incumbent;
    terms.goes_on = leader.goes_on;
    terms.rows_before = std::move(before);
    leader.jobs = std::make_unique<HeldJobs>(terms, rows, RowsClock(), now_);
    take(which, leader.jobs->begin());
  }

  void turn() {
    const int what = pick(1, 100);
    const auto chosen = std::next(agents_.begin(), pick(0, static_cast<int>(agents_.size()) - 1));
    Agent& agent = chosen->second;
    if (what <= 5) {
      now_ += std::chrono::milliseconds(pick(1, 12'000));
      for (int which = 0; which < 2; ++which) {
        const auto due = leaders_[which].jobs->next_deadline();
        if (due && *due <= now_) feed(which, event::Tick{});
      }
    } else if (what <= 10) {
      restart(pick(0, 1));
    } else if (what <= 12) {
      give_up(pick(0, 1));
    } else if (what <= 20) {
      if (agent.at) {
        const int which = *agent.at;
        const ConnectionId connection = agent.connection;
        lose(agent);
        feed(which, event::Closed{connection});
      }
    } else if (what <= 30) {
      decide(pick(0, 1));
    } else if (!agent.at) {
      join(chosen->first, agent, pick(0, 1));
    } else if (!agent.inbox.empty() && chance(50)) {
      RendezvousMessage message = std::move(agent.inbox.front());
      agent.inbox.pop_front();
      hear(agent, message);
    } else if (!agent.outbox.empty()) {
      event::Message message{agent.connection, {0, 0, std::move(agent.outbox.front())}, {}};
      agent.outbox.pop_front();
      feed(*agent.at, message);
    }
  }

  // A leader that has won nothing yet ends its term for good, and the other one hears of it: where
  // that one goes on from the same term (`gives_up_all`: whatever it goes on from).
  void give_up(int which) {
    const Leader& old = leaders_[which];
    if (old.has_won || old.jobs->has_won_any()) return;
    const Leader& heir = leaders_[1 - which];
    const bool has_basis =
        heir.term == old.bases.front() || std::ranges::count(heir.bases, old.bases.front()) > 0;
    if (!has_basis && !gives_up_all_) return;
    const std::string term = old.term;
    for (auto& [name, agent] : agents_) {
      if (agent.at == which) lose(agent);
    }
    restart_in_new_term(which);
    Leader& other = leaders_[1 - which];
    other.bases.push_back(term);
    take(1 - which, other.jobs->add_bases({term}));
  }

  // A leader begins anew: it claims in a new term what it had, whether it had won that or not.
  void restart(int which) {
    Leader& old = leaders_[which];
    for (auto& [name, agent] : agents_) {
      if (agent.at == which) lose(agent);
    }
    if (chance(30)) {  // in the same term: nobody else can have gone on from that
      old.goes_on = true;
      old.is_incumbent = true;
      return begin(which);
    }
    restart_in_new_term(which);
  }

  void restart_in_new_term(int which) {
    Leader& old = leaders_[which];
    Leader leader = new_leader(true, old.last, std::nullopt);
    leader.bases = old.bases;
    leader.bases.insert(leader.bases.begin(), old.term);
    leader.journal = old.journal;
    if (forgets_marks_) leader.journal.erase("jobs/1/held");
    old = std::move(leader);
    begin(which);
  }

  void join(const std::string& name, Agent& agent, int which) {
    Join join;
    join.run_id = "job";
    join.instance = "instance of " + name;
    join.session = name;
    agent.at = which;
    agent.connection = ++last_connection_;
    feed(which, event::Message{agent.connection, {0, 0, std::move(join)}, {}});
  }

  void lose(Agent& agent) {
    agent.at.reset();
    agent.is_welcome = false;
    agent.inbox.clear();
    agent.outbox.clear();
  }

  void feed(int which, const Event& event) { take(which, leaders_[which].jobs->step(event, now_)); }

  Agent* agent_at(ConnectionId connection) {
    for (auto& [name, agent] : agents_) {
      if (agent.at && agent.connection == connection) return &agent;
    }
    return nullptr;
  }

  void take(int which, const HeldJobs::Outcome& outcome) {
    Leader& leader = leaders_[which];
    journal::apply_batch(outcome.changes, leader.journal);
    for (const Action& action : outcome.actions) {
      if (const auto* send = std::get_if<action::Send>(&action)) {
        if (Agent* agent = agent_at(send->connection)) {
          agent->inbox.push_back(send->envelope.message);
        }
      } else if (const auto* close = std::get_if<action::Close>(&action)) {
        if (Agent* agent = agent_at(close->connection)) lose(*agent);
      }
    }
    for (const auto& job : outcome.restored) won(which, job.rows);
    for (const auto& join : outcome.joins) {
      Agent* agent = agent_at(join.connection);
      if (agent == nullptr || !leader.has_won) continue;
      Welcome welcome;
      welcome.session = std::get<Join>(join.envelope.message).session;
      welcome.term = leader.term;
      agent->inbox.emplace_back(welcome);
    }
  }

  void won(int which, const journal::Rows& rows) {
    Leader& leader = leaders_[which];
    leader.has_won = won_[which] = true;
    if (won_[1 - which]) {
      violation_ = concat(leader.term, " and ", leaders_[1 - which].term, " have won");
    }
    const std::uint64_t restored = read_job(rows_by_job(rows).at(1), {}).round;
    if (restored != leader.last.number) violation_ = "other rows than it had were restored";
    for (const auto& [name, agent] : agents_) {
      if (agent.follows.follows() == leader.term && agent.version > restored) {
        violation_ = concat(leader.term, " restored version ", restored, ", ", name, " was told ",
                            agent.version);
      }
    }
  }

  // Who has won changes the job, and its agents hear of it.
  void decide(int which) {
    Leader& leader = leaders_[which];
    if (!leader.has_won) return;
    ++leader.last.number;
    leader.journal = rows_of(job_state(leader.last.number, leader.last.members));
    for (auto& [name, agent] : agents_) {
      if (agent.at == which && agent.is_welcome) agent.version = leader.last.number;
    }
  }

  void hear(Agent& agent, const RendezvousMessage& message) {
    const Leader& leader = leaders_[*agent.at];
    if (const auto* claim = std::get_if<Claim>(&message)) {
      const bool granted = agent.follows.claim(*claim);
      agent.outbox.emplace_back(Vote{claim->term, granted, agent.follows.follows()});
    } else if (const auto* welcome = std::get_if<Welcome>(&message)) {
      if (agent.follows.follows() != welcome->term) {
        violation_ = concat(welcome->term, " welcomed one that follows ", agent.follows.follows());
        return;
      }
      if (agent.version > leader.last.number) {
        violation_ = concat(leader.term, " welcomed one that knows more than it");
      }
      agent.is_welcome = true;
      agent.version = leader.last.number;
    }
  }

  std::vector<std::string> all_names() const {
    std::vector<std::string> names;
    for (const auto& [name, agent] : agents_) names.push_back(name);
    return names;
  }

  std::mt19937_64 random_;
  const bool forgets_marks_, gives_up_all_;
  Clock::time_point now_{1h};
  std::map<std::string, Agent> agents_;
  std::array<Leader, 2> leaders_;
  std::array<bool, 2> won_{};       // since the two began, in whatever term
  std::vector<std::string> bases_;  // of the job as it is now, newest first
  Version version_;
  int num_terms_ = 0;
  ConnectionId last_connection_ = 0;
  std::optional<std::string> violation_;
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kTermWorlds = 300;  // each takes eight times as long
#else
constexpr std::uint64_t kTermWorlds = 2'000;
#endif

TEST_CASE("Terms: whoever claims what, in any order: one goes on, and knows all", "[random]") {
  const std::uint64_t num_worlds = std::getenv("DDPRUN_SOAK") != nullptr ? 100'000 : kTermWorlds;
  int num_wins = 0, num_losses = 0;
  for (std::uint64_t seed = 1; seed <= num_worlds; ++seed) {
    TermsWorld world(seed);
    if (const auto violation = world.run()) FAIL("seed " << seed << ": " << *violation);
    num_wins += world.num_wins;
    num_losses += world.num_losses;
  }
  // The worlds are not trivial ones.
  CHECK(num_wins > static_cast<int>(num_worlds / 2));
  CHECK(num_losses > static_cast<int>(num_worlds / 20));
}

TEST_CASE("Terms: one that forgets that it only held a job, or gives up too much, is caught",
          "[random]") {
  const auto bug = GENERATE(TermsWorld::Bug::kForgetsMarks, TermsWorld::Bug::kGivesUpAll);
  int num_caught = 0;
  for (std::uint64_t seed = 1; seed <= 2'000 && num_caught < 3; ++seed) {
    num_caught += TermsWorld(seed, bug).run().has_value() ? 1 : 0;
  }
  CHECK(num_caught >= 3);
}

}  // namespace
}  // namespace ddprun::membership::testing
