// SPDX-License-Identifier: Apache-2.0
// A PairWorld's turns, and how it ends.
#include "tests/rendezvous/ha/pair_world.h"

#include <algorithm>

#include "common/log.h"

namespace ddprun::ha::testing {

std::optional<std::string> PairWorld::run() {
  ends_often_ = chance(40);
  for (int side = 0; side < 2; ++side) start(side);
  has_faults_ = false;
  lead(0);
  has_faults_ = true;
  begin_jobs();
  mirror(1);
  for (int i = pick(0, 400); i > 0 && !violation_; --i) turn();
  if (!violation_) settle();
  return violation_;
}

void PairWorld::violate(const std::string& what) {
  if (!violation_) violation_ = what;
}

void PairWorld::tell(int side, const std::string& what) {
  constexpr std::size_t kMostLines = 60;
  story_.push_back(concat(side == 0 ? "a " : "b ", what));
  if (story_.size() > kMostLines) story_.pop_front();
}

std::string PairWorld::story() const {
  std::string all;
  for (const std::string& line : story_) all += line + "\n";
  return all;
}

std::string PairWorld::new_term() {
  std::string id = concat(++num_terms_);
  return std::string(32 - id.size(), '0') + id;
}

void PairWorld::turn() {
  const int side = pick(0, 1), what = pick(1, 1000);
  const std::uint64_t job = static_cast<std::uint64_t>(pick(1, 2));
  const bool decides = sides_[side].leads && sides_[side].is_up && sides_[side].won.contains(job);
  if (what <= 500) {
    agent_turn();
  } else if (what <= 580) {
    call(side);
  } else if (what <= 660) {
    act(side);
  } else if (what <= 740) {
    go_on_mirroring();
  } else if (what <= 830) {
    if (decides) ends_often_&& chance(30) ? end_job(side, job) : decide_job(side, job);
  } else if (what <= 836) {
    if (decides) end_job(side, job);
  } else if (what <= 860) {
    notice(side);
  } else if (what <= 895) {
    stand_alone(side, false);
  } else if (what <= 910) {
    cut();
  } else if (what <= 922) {
    die(side);
  } else if (what <= 930) {
    stop_leader(side);
  } else if (what <= 936) {
    stop_standby(side);
  } else if (what <= 942) {
    lose_disk(side);
  } else if (what <= 985) {
    if (!sides_[side].is_up) start(side);
  } else if (what <= 990) {
    sides_[side].distrusts_disk = false;
  } else {
    pass(std::chrono::milliseconds(pick(1, 5'000)));
  }
}

bool PairWorld::is_led_by_one() const {
  const bool synced = session_.stage == Stage::kSynced && !session_.is_cut;
  return synced && sides_[0].leads != sides_[1].leads;
}

// It has voted for a term that has decided something else, and lost this agent's job: what a vote
// was for can't be taken back. Or others of its job have, for one side each.
bool PairWorld::is_cut_off(const Agent& agent) const {
  const auto is_lost_to = [&](const Side& side, const Agent& its) {
    return side.leads && side.may_have_decided && side.term.term.id == its.follows.follows() &&
           !side.won.contains(its.job);
  };
  const auto has_voted_for = [&](const Side& side) {
    return std::ranges::any_of(agents_, [&](const auto& each) {
      return each.second.job == agent.job && is_lost_to(side, each.second);
    });
  };
  const std::string& follows = agent.follows.follows();
  if (dead_terms_.contains(follows) || lost_ends_.contains({agent.job, follows})) return true;
  return std::ranges::any_of(sides_, [&](const Side& side) { return is_lost_to(side, agent); }) ||
         std::ranges::all_of(sides_, has_voted_for);
}

// All are there and hear each other from now on.
void PairWorld::settle() {
  tell(0, "and the other one find peace");
  has_faults_ = false;
  for (int side = 0; side < 2; ++side) {
    if (!sides_[side].is_up) start(side);
    sides_[side].distrusts_disk = false;
  }
  const auto go_on = [this](int num_turns) {
    for (int i = 0; i < num_turns && !violation_; ++i) {
      for (int side = 0; side < 2; ++side) {
        notice(side);
        call(side);
        act(side);
      }
      go_on_mirroring();
      for (int k = 0; k < 20; ++k) agent_turn();
    }
  };
  go_on(30);
  // Jobs that are over are forgotten after a while.
  for (int side = 0; side < 2; ++side) {
    for (const std::uint64_t job : jobs_in(sides_[side].rows)) {
      const Side& it = sides_[side];
      if (it.leads && it.won.contains(job) && is_over_in(it.rows, job)) end_job(side, job);
    }
  }
  go_on(100);
  // Every job that is not over is somewhere, and all its agents are there.
  for (const auto& [name, agent] : agents_) {
    if (violation_ || ended_.contains(agent.job)) continue;
    if (!agent.is_welcome && !is_cut_off(agent)) {
      violate(concat("agent ", name, " is nowhere"));
    }
  }
  // Two that have jobs each lead on, until they are over, and none is held any more.
  for (std::uint64_t job = 1; job <= 2; ++job) {
    for (int side = 0; side < 2; ++side) {
      for (int i = 0; i < 2; ++i) {
        if (sides_[side].leads && sides_[side].won.contains(job)) end_job(side, job);
      }
    }
  }
  go_on(20);
  for (const auto& [name, agent] : agents_) may_be_lost_.insert(agent.job);
  now_ += 2 * kMostTime;
  pass({});
  go_on(60);
  if (!violation_ && !is_led_by_one()) violate("no one leads, mirrored by the other one");
}

}  // namespace ddprun::ha::testing
