// SPDX-License-Identifier: Apache-2.0
// Quorums, exhaustively for small numbers: who else could have them is tried, not argued.
#include "rendezvous/membership/voters.h"

#include <algorithm>

#include "tests/rendezvous/membership/job_rows_of.h"
#include "tests/support/catch.h"

namespace ddprun::membership::testing {
namespace {

constexpr int kMostVoters = 5;

std::string voter(int number) { return std::string(1, static_cast<char>('a' + number)); }

Voters voters(unsigned bits) {
  Voters set;
  for (int i = 0; i < kMostVoters; ++i) {
    if ((bits >> i & 1U) != 0) set.insert(voter(i));
  }
  return set;
}

// Each of kMostVoters has granted the first or the second of two, or nobody: 3⁵ ways.
template <typename Check>
void for_each_split(int num_voters, const Check& check) {
  int num_splits = 1;
  for (int i = 0; i < num_voters; ++i) num_splits *= 3;
  for (int split = 0; split < num_splits; ++split) {
    std::vector<int> choice;
    for (int i = 0, rest = split; i < num_voters; ++i, rest /= 3) choice.push_back(rest % 3);
    check(choice);
  }
}

Ballot counted(std::vector<Voters> sets, bool is_incumbent, const std::vector<int>& choice,
               int which) {
  Ballot ballot(std::move(sets), is_incumbent);
  for (std::size_t i = 0; i < choice.size(); ++i) {
    const std::string session = voter(static_cast<int>(i));
    if (choice[i] == which) ballot.grant(session);
    if (choice[i] != which && choice[i] != 0) ballot.deny(session);
  }
  return ballot;
}

TEST_CASE("Voters: an incumbent and a challenger never both win, whoever all grant wins") {
  for (int n = 1; n <= kMostVoters; ++n) {
    const Voters all = voters((1U << n) - 1);
    for_each_split(n, [&](const std::vector<int>& choice) {
      const bool incumbent = counted({all}, true, choice, 1).is_won();
      const bool challenger = counted({all}, false, choice, 2).is_won();
      CHECK_FALSE((incumbent && challenger));
      // Nor two challengers: the second standby of an incumbent that is gone.
      CHECK_FALSE((counted({all}, false, choice, 1).is_won() && challenger));
      const auto num = std::ranges::count(choice, 0);
      if (num == 0) CHECK((incumbent || challenger));  // nobody abstained
    });
  }
}

TEST_CASE("Voters: who has another last batch than the other needs a quorum before and after it") {
  // Every pair of sets of 4 nodes: the incumbent has either, the challenger has both.
  constexpr int kNodes = 4;
  for (unsigned before = 0; before < 1U << kNodes; ++before) {
    for (unsigned after = 1; after < 1U << kNodes; ++after) {
      for_each_split(kNodes, [&](const std::vector<int>& choice) {
        const bool challenger = counted({voters(after), voters(before)}, false, choice, 2).is_won();
        const bool knows_it = counted({voters(after)}, true, choice, 1).is_won();
        const bool knows_it_not = counted({voters(before)}, true, choice, 1).is_won();
        if (knows_it && challenger) FAIL("both after " << after << " before " << before);
        // A job without voters before is as a new one.
        if (before != 0 && knows_it_not && challenger) FAIL("both before " << before);
      });
      const std::vector<int> all_for_it(kNodes, 2);
      if (!counted({voters(after), voters(before)}, false, all_for_it, 2).is_won()) FAIL("stuck");
    }
  }
}

TEST_CASE("Ballot: it is lost as soon as nobody's vote can win it any more") {
  for (const bool is_incumbent : {false, true}) {
    for (int n = 1; n <= kMostVoters; ++n) {
      const Voters all = voters((1U << n) - 1);
      for_each_split(n, [&](const std::vector<int>& choice) {
        const Ballot ballot = counted({all}, is_incumbent, choice, 1);
        std::vector<int> best = choice;
        std::ranges::replace(best, 0, 1);
        CHECK(ballot.is_lost() != counted({all}, is_incumbent, best, 1).is_won());
      });
    }
  }
}

TEST_CASE("Ballot: votes of others, and said twice, count nothing: the set that lacks most shows") {
  Ballot ballot({{"a", "b", "c"}, {"a", "d"}}, false);
  ballot.grant("x");
  ballot.deny("y");
  ballot.grant("a");
  ballot.grant("a");
  CHECK(ballot.count().granted == 1);
  CHECK(ballot.count().voters == 3);
  ballot.grant("b");
  CHECK_FALSE(ballot.is_won());  // one of a, d is half
  CHECK_FALSE(ballot.is_lost());
  ballot.grant("d");
  CHECK(ballot.is_won());
}

TEST_CASE("Voters: those of a job are who could be told what another rendezvous would contradict") {
  CHECK(voters_of(job_state(0, {"a", "b"})).empty());
  CHECK(voters_of(job_state(3, {"a", "b"}, {"spare"})) == Voters{"a", "b"});
  JobState job = job_state(3, {"a", "b"}, {"spare"});
  job.nodes.edit(1).gone = true;
  CHECK(voters_of(job) == Voters{"b"});
  job.phase = JobPhase::kStopping;
  CHECK(voters_of(job) == Voters{"b"});
  job.phase = JobPhase::kForming;  // the next round may be of any of them
  CHECK(voters_of(job) == Voters{"b", "spare"});
  job.phase = JobPhase::kEnded;
  job.verdict = JobEnd();
  CHECK(voters_of(job).empty());
}

}  // namespace
}  // namespace ddprun::membership::testing
