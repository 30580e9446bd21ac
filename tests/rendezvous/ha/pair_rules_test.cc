// SPDX-License-Identifier: Apache-2.0
// The tables of docs/ha-standby.md, over every combination of what two sides may be.
#include "rendezvous/ha/pair_rules.h"

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace ddprun::ha::testing {
namespace {

using namespace std::chrono_literals;

// Ids that the two share, and of their own.
const TermId kBase{"base", 1}, kOfFirst{"first's", 2}, kOfSecond{"second's", 2};

struct Side {
  RowsKind rows;
  bool leads;
};
constexpr std::array<Side, 5> kSides{{{RowsKind::kEmpty, false},
                                      {RowsKind::kCopy, false},
                                      {RowsKind::kSynced, false},
                                      {RowsKind::kLeads, false},
                                      {RowsKind::kLeads, true}}};

// How the two lines are to each other.
enum class Kinship { kSame, kFirstGoesOn, kSecondGoesOn, kEach, kOneBasis, kNone };
constexpr std::array<Kinship, 6> kKinships{Kinship::kSame,         Kinship::kFirstGoesOn,
                                           Kinship::kSecondGoesOn, Kinship::kEach,
                                           Kinship::kOneBasis,     Kinship::kNone};

PairState state_of(const Side& side, bool is_first, std::uint64_t num_jobs,
                   std::uint64_t num_held) {
  PairState state;
  state.name = is_first ? "a:29400" : "b:29400";
  state.is_first = is_first;
  state.leads = side.leads;
  state.rows = side.rows;
  state.num_jobs = num_jobs;
  state.num_held = side.leads ? num_held : 0;
  return state;
}

void give_lines(Kinship kinship, PairState& first, PairState& second) {
  first.term = kOfFirst;
  second.term = kOfSecond;
  const std::string &a = kOfFirst.id, &b = kOfSecond.id, &base = kBase.id;
  switch (kinship) {
    case Kinship::kSame:
      second.term = first.term;
      first.line = second.line = {a, base};
      break;
    case Kinship::kFirstGoesOn:
      first.line = {a, b, base};
      second.line = {b, base};
      break;
    case Kinship::kSecondGoesOn:
      first.line = {a, base};
      second.line = {b, a, base};
      break;
    case Kinship::kEach:  // each has heard that the other one gave its term up
      first.line = {a, base, b};
      second.line = {b, base, a};
      break;
    case Kinship::kOneBasis:
      first.line = {a, base};
      second.line = {b, base};
      break;
    case Kinship::kNone:
      first.line = {a};
      second.line = {b};
      break;
  }
  for (PairState* state : {&first, &second}) {
    if (state->rows == RowsKind::kLeads || state->rows == RowsKind::kSynced) continue;
    state->term = {};
    state->line.clear();
  }
}

void for_all_pairs(const std::function<void(const PairState&, const PairState&, Kinship)>& check) {
  for (const Side& first_side : kSides) {
    for (const Side& second_side : kSides) {
      for (const Kinship kinship : kKinships) {
        for (int bits = 0; bits < 16; ++bits) {
          PairState first = state_of(first_side, true, bits & 1, (bits >> 1) & 1);
          PairState second = state_of(second_side, false, (bits >> 2) & 1, (bits >> 3) & 1);
          give_lines(kinship, first, second);
          CAPTURE(static_cast<int>(first.rows), first.leads, first.num_jobs, first.num_held,
                  static_cast<int>(second.rows), second.leads, second.num_jobs, second.num_held,
                  static_cast<int>(kinship));
          check(first, second, kinship);
        }
      }
    }
  }
}

bool may_lead(const PairState& state) {
  return state.rows == RowsKind::kLeads || state.rows == RowsKind::kSynced;
}

TEST_CASE("Pair rules: never do both mirror, nor one whose rows would be lost by that") {
  for_all_pairs([](const PairState& first, const PairState& second, Kinship) {
    for (const auto* each : {&first, &second}) {
      const PairState &mine = *each, &theirs = each == &first ? second : first;
      const Decision decision = decide(mine, theirs, "");
      CHECK(!decision.why.empty());
      if (decision.move != PairMove::kMirror) continue;
      CHECK((theirs.leads && !mine.leads));
      CHECK((!may_lead(mine) || mine.num_jobs == 0 || has_term(theirs.line, mine.term.id)));
    }
  });
}

TEST_CASE("Pair rules: of two that stand by one leads, and both only where each has its own jobs") {
  for_all_pairs([](const PairState& first, const PairState& second, Kinship kinship) {
    if (first.leads || second.leads) return;
    const Decision one = decide(first, second, ""), other = decide(second, first, "");
    const int num_leads = (one.move == PairMove::kLead) + (other.move == PairMove::kLead);
    const bool are_empty = first.rows == RowsKind::kEmpty && second.rows == RowsKind::kEmpty;
    if (!may_lead(first) && !may_lead(second) && !are_empty) {
      CHECK(num_leads == 0);
      CHECK((one.is_stuck && other.is_stuck));
      return;
    }
    CHECK((!one.is_stuck && !other.is_stuck));
    const bool have_led = first.rows == RowsKind::kLeads && second.rows == RowsKind::kLeads;
    const bool is_kin = kinship == Kinship::kSame || kinship == Kinship::kFirstGoesOn ||
                        kinship == Kinship::kSecondGoesOn;
    const bool each_has_jobs = first.num_jobs > 0 && second.num_jobs > 0;
    CHECK(num_leads == (have_led && !is_kin && each_has_jobs ? 2 : 1));
  });
}

TEST_CASE("Pair rules: who has a copy never leads, who goes on from the other's rows comes first") {
  for_all_pairs([](const PairState& first, const PairState& second, Kinship kinship) {
    for (const auto* each : {&first, &second}) {
      const PairState &mine = *each, &theirs = each == &first ? second : first;
      const Decision decision = decide(mine, theirs, "");
      if (mine.rows == RowsKind::kCopy) CHECK(decision.move != PairMove::kLead);
      if (mine.leads || theirs.leads || !may_lead(mine) || !may_lead(theirs)) continue;
      const auto ahead = mine.is_first ? Kinship::kFirstGoesOn : Kinship::kSecondGoesOn;
      const auto behind = mine.is_first ? Kinship::kSecondGoesOn : Kinship::kFirstGoesOn;
      if (kinship == ahead) CHECK(decision.move == PairMove::kLead);
      if (kinship == behind) CHECK(decision.move == PairMove::kWait);
    }
  });
}

TEST_CASE(
    "Pair rules: who distrusts its disk never leads, and follows nobody that it else wouldn't") {
  for_all_pairs([](const PairState& first, const PairState& second, Kinship) {
    for (const auto* each : {&first, &second}) {
      const PairState &mine = *each, &theirs = each == &first ? second : first;
      if (mine.leads) continue;
      PairState careful = mine;
      careful.distrusts_disk = true;
      const PairMove usual = decide(mine, theirs, "").move;
      const PairMove move = decide(careful, theirs, "").move;
      CHECK(move == (usual == PairMove::kLead ? PairMove::kWait : usual));
      CHECK_FALSE(patience(careful, {true, false, 3s}));
      const PairState told = as_told(careful);
      CHECK((told.rows == RowsKind::kCopy && told.line.empty() && told.term.id.empty()));
      CHECK(told.num_jobs == mine.num_jobs);
      CHECK(as_told(mine) == mine);
    }
  });
}

TEST_CASE("Pair rules: of two that lead one yields, if one can, and never one with jobs") {
  for_all_pairs([](const PairState& first, const PairState& second, Kinship) {
    if (!first.leads || !second.leads) return;
    const bool first_yields = decide(first, second, "").move == PairMove::kYield;
    const bool second_yields = decide(second, first, "").move == PairMove::kYield;
    const bool first_can = can_yield(first, second), second_can = can_yield(second, first);
    CHECK(first_yields + second_yields == (first_can || second_can ? 1 : 0));
    if (first_can && second_can) CHECK(second_yields);
    if (first_yields) CHECK((first_can && first.num_jobs == 0));
    if (second_yields) CHECK((second_can && second.num_jobs == 0));
  });
}

TEST_CASE("Pair rules: two that lead in one term have copies of one directory, and say so") {
  PairState first = state_of({RowsKind::kLeads, true}, true, 1, 0);
  PairState second = state_of({RowsKind::kLeads, true}, false, 1, 0);
  give_lines(Kinship::kSame, first, second);
  for (const Decision& decision : {decide(first, second, ""), decide(second, first, "")}) {
    CHECK(decision.is_stuck);
    CHECK_THAT(decision.why, Catch::Contains("one --state-dir is a copy of the other"));
  }
  give_lines(Kinship::kOneBasis, first, second);
  CHECK_FALSE(decide(first, second, "").is_stuck);
}

TEST_CASE("Pair rules: who holds jobs yields only to one that goes on from where it has them") {
  PairState mine = state_of({RowsKind::kLeads, true}, true, 0, 1);
  PairState theirs = state_of({RowsKind::kLeads, true}, false, 1, 0);
  mine.term = kOfFirst;
  theirs.term = kOfSecond;
  mine.line = {kOfFirst.id, kBase.id};
  theirs.line = {kOfSecond.id, kBase.id};
  CHECK(can_yield(mine, theirs));
  theirs.line = {kOfSecond.id};
  CHECK_FALSE(can_yield(mine, theirs));
  mine.num_held = 0;
  CHECK(can_yield(mine, theirs));
  // What it has given up itself decided nothing: it holds them from before that.
  mine.num_held = 1;
  mine.line = {kOfFirst.id, "given up", kBase.id};
  theirs.line = {kOfSecond.id, kBase.id};
  CHECK_FALSE(can_yield(mine, theirs));
  mine.given_up = {"given up"};
  CHECK(can_yield(mine, theirs));
  // Nor did what the other one has, which is in both lines since this one has heard of it: that one
  // may have no jobs at all (it lost its disk).
  mine.line = {kOfFirst.id, "theirs", kBase.id};
  mine.given_up.clear();
  theirs.line = {kOfSecond.id, "theirs"};
  CHECK(can_yield(mine, theirs));
  theirs.given_up = {"theirs"};
  CHECK_FALSE(can_yield(mine, theirs));
  theirs.given_up.clear();
  mine.line = {kOfFirst.id};  // held, and from nowhere: nonsense is kept
  CHECK_FALSE(can_yield(mine, theirs));
}

// What follows from what each of them does in turn, where nothing else happens.
struct Settled {
  PairState first, second;
  std::array<bool, 2> mirrors{};
  bool has_settled = false;
};

Settled settle(const PairState& first, const PairState& second) {
  Settled now{first, second};
  std::array<std::string, 2> yielded_to;
  int num_quiet = 0, num_terms = 0;
  for (int turn = 0; turn < 60 && (turn <= 30 || num_quiet < 2); ++turn) {
    if (turn == 30) now.first.num_held = now.second.num_held = num_quiet = 0;  // won, or over
    const bool is_first = turn % 2 == 0;
    PairState& mine = is_first ? now.first : now.second;
    const PairState& theirs = is_first ? now.second : now.first;
    bool& mirrors = now.mirrors[is_first ? 0 : 1];
    if (mirrors) {
      ++num_quiet;
      continue;
    }
    switch (decide(mine, theirs, yielded_to[is_first ? 0 : 1]).move) {
      case PairMove::kWait:
        ++num_quiet;
        continue;
      case PairMove::kMirror:
        mirrors = true;
        mine.rows = RowsKind::kSynced;
        mine.term = theirs.term;
        mine.line = theirs.line;
        break;
      case PairMove::kLead:
        mine.leads = true;
        mine.rows = RowsKind::kLeads;
        mine.term = {concat("new ", ++num_terms), 3};
        mine.line.insert(mine.line.begin(), mine.term.id);
        break;
      case PairMove::kYield:
        mine.leads = false;
        yielded_to[is_first ? 0 : 1] = theirs.term.id;
        break;
    }
    num_quiet = 0;
  }
  now.has_settled = num_quiet >= 2;
  return now;
}

TEST_CASE("Pair rules: wherever two begin, they settle: one leads and one mirrors it") {
  for_all_pairs([](const PairState& first, const PairState& second, Kinship) {
    const Settled end = settle(first, second);
    REQUIRE(end.has_settled);
    CHECK_FALSE((end.mirrors[0] && end.mirrors[1]));
    const bool is_pair =
        (end.first.leads && end.mirrors[1]) || (end.second.leads && end.mirrors[0]);
    const bool both_lead = end.first.leads && end.second.leads;
    const bool nobody_may = !may_lead(first) && !may_lead(second) &&
                            (first.rows == RowsKind::kCopy || second.rows == RowsKind::kCopy);
    if (both_lead) CHECK((!can_yield(end.first, end.second) && !can_yield(end.second, end.first)));
    CHECK((is_pair || both_lead || nobody_may));
  });
}

TEST_CASE("Pair rules: who has yielded mirrors whoever goes on from whom it yielded to") {
  PairState mine = state_of({RowsKind::kLeads, false}, true, 1, 0);
  PairState theirs = state_of({RowsKind::kLeads, true}, false, 1, 0);
  mine.term = kOfFirst;
  mine.line = {kOfFirst.id, kBase.id};
  theirs.term = {"later", 5};
  theirs.line = {"later", kOfSecond.id, kBase.id};
  CHECK(decide(mine, theirs, "").move == PairMove::kLead);
  CHECK(decide(mine, theirs, kOfSecond.id).move == PairMove::kMirror);
  theirs.line = {"later"};  // it has lost all since
  CHECK(decide(mine, theirs, kOfSecond.id).move == PairMove::kLead);
}

TEST_CASE("Pair rules: two with the same flag wait, and name it") {
  PairState mine = state_of({RowsKind::kSynced, false}, true, 0, 0);
  PairState theirs = mine;
  theirs.name = "b:29400";
  const Decision decision = decide(mine, theirs, "");
  CHECK(decision.move == PairMove::kWait);
  CHECK(decision.is_stuck);
  CHECK(decision.why ==
        "b:29400 was started with --standby, as this one: give one of the two --standby-of");
}

TEST_CASE("Pair rules: a side that meets itself waits, and says so") {
  PairState mine;
  mine.name = "a:29400";
  mine.is_first = false;
  const Decision decision = decide(mine, as_told(mine), "");
  CHECK(decision.move == PairMove::kWait);
  CHECK(decision.is_stuck);
  CHECK(decision.why ==
        "what --standby-of names is this ddprund itself, a:29400 (or one of its --ha-name): name "
        "the other one");
}

TEST_CASE("Pair rules: alone, a side leads at once, after the lease, or never") {
  const auto of = [](RowsKind rows, bool is_first, bool is_certain, bool is_refused) {
    const PairState state = state_of({rows, false}, is_first, 0, 0);
    return patience(state, {is_certain, is_refused, 3s});
  };
  for (const bool is_first : {false, true}) {
    CHECK(of(RowsKind::kLeads, is_first, false, false) == 0ms);
    CHECK(of(RowsKind::kLeads, is_first, false, true) == 0ms);
    CHECK(of(RowsKind::kSynced, is_first, true, false) == 0ms);
    CHECK(of(RowsKind::kSynced, is_first, false, false) == 3s);
    CHECK(of(RowsKind::kSynced, is_first, false, true) == std::nullopt);
    CHECK(of(RowsKind::kCopy, is_first, true, false) == std::nullopt);
  }
  CHECK(of(RowsKind::kEmpty, true, true, false) == 3s);
  CHECK(of(RowsKind::kEmpty, true, false, true) == std::nullopt);
  CHECK(of(RowsKind::kEmpty, false, true, false) == std::nullopt);
}

TEST_CASE("Pair rules: who leads, and waits for nodes yet, is not mirrored by one that has rows") {
  PairState mine = state_of({RowsKind::kSynced, false}, true, 1, 0);
  PairState theirs = state_of({RowsKind::kLeads, true}, false, 0, 1);
  mine.term = kOfFirst;
  mine.line = {kOfFirst.id};
  theirs.term = kOfSecond;
  theirs.line = {kOfSecond.id, kOfFirst.id};
  CHECK(decide(mine, theirs, "").move == PairMove::kWait);
  CHECK(decide(mine, theirs, kOfSecond.id).move == PairMove::kWait);
  mine.rows = RowsKind::kCopy;
  CHECK(decide(mine, theirs, "").move == PairMove::kMirror);
  mine.rows = RowsKind::kLeads;
  theirs.num_held = 0;
  CHECK(decide(mine, theirs, "").move == PairMove::kMirror);
}

// ---- terms ----

const std::string kIdA(32, 'a'), kIdB(32, 'b'), kIdC(32, 'c');

LeaderRows led(bool has_standby) {
  LeaderRows rows;
  rows.kind = RowsKind::kLeads;
  rows.term = {kIdA, 4};
  rows.line = {kIdA, kIdB};
  rows.has_standby = has_standby;
  return rows;
}

TEST_CASE("Pair terms: who led without a standby goes on in its term, and asks nobody") {
  const TermPlan plan = plan_term(led(false), kIdC, std::nullopt);
  CHECK(plan.goes_on);
  CHECK(plan.row == TermRow{{kIdA, 4}, {kIdA, kIdB}});
  CHECK(plan.terms.own == kIdA);
  CHECK(plan.terms.goes_on);
  CHECK(plan.terms.bases == TermLine{kIdB});  // nodes that were away since are asked
  CHECK(plan.terms.is_incumbent);
}

TEST_CASE("Pair terms: who led with a standby begins a new one, as the incumbent") {
  const TermPlan plan = plan_term(led(true), kIdC, std::nullopt);
  CHECK_FALSE(plan.goes_on);
  CHECK(plan.row == TermRow{{kIdC, 5}, {kIdC, kIdA, kIdB}});
  CHECK(plan.terms.own == kIdC);
  CHECK(plan.terms.bases == TermLine{kIdA, kIdB});
  CHECK(plan.terms.is_incumbent);
}

TEST_CASE("Pair terms: nobody leads again in a term that it has given up") {
  LeaderRows rows = led(false);
  rows.given_up = {kIdA};
  const TermPlan plan = plan_term(rows, kIdC, std::nullopt);
  CHECK_FALSE(plan.goes_on);
  CHECK(plan.row.line == TermLine{kIdC, kIdA, kIdB});
}

TEST_CASE("Pair terms: who takes over asks for the rows before the last batch, too") {
  LeaderRows rows = led(false);
  rows.kind = RowsKind::kSynced;
  const TermPlan plan = plan_term(rows, kIdC, journal::Rows{{"jobs/1/state", "{}"}});
  CHECK(plan.row.line == TermLine{kIdC, kIdA, kIdB});
  CHECK_FALSE(plan.terms.is_incumbent);
  CHECK(plan.terms.rows_before == journal::Rows{{"jobs/1/state", "{}"}});
}

TEST_CASE("Pair terms: the first one of all holds nothing") {
  const TermPlan plan = plan_term({}, kIdC, std::nullopt);
  CHECK(plan.row == TermRow{{kIdC, 1}, {kIdC}});
  CHECK(plan.terms.bases.empty());
}

TEST_CASE("Pair terms: a line has at most 16, its own first") {
  LeaderRows rows = led(true);
  rows.line.clear();
  for (std::size_t i = 0; i < kMaxTermLine; ++i) rows.line.push_back(concat("term ", i));
  const TermLine line = plan_term(rows, kIdC, std::nullopt).row.line;
  REQUIRE(line.size() == kMaxTermLine);
  CHECK(line[0] == kIdC);
  CHECK(line[1] == "term 0");
}

}  // namespace
}  // namespace ddprun::ha::testing
