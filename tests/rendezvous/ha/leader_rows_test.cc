// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/leader_rows.h"

#include <cstdint>
#include <initializer_list>
#include <string>

#include "rendezvous/journal/row.h"
#include "tests/support/catch.h"

namespace ddprun::ha {
namespace {

using journal::apply_batch;
using journal::Rows;

constexpr char kId[] = "0123456789abcdef0123456789abcdef";
constexpr char kOther[] = "fedcba9876543210fedcba9876543210";

TermRow term_row(const char* id, std::uint64_t number, const char* before) {
  TermRow row;
  row.term.id = id;
  row.term.number = number;
  row.line.emplace_back(id);
  row.line.emplace_back(before);
  return row;
}

SyncedWith synced_with(const TermRow& row) {
  SyncedWith synced;
  synced.term = row.term;
  synced.line = row.line;
  synced.leader = "a:1";
  return synced;
}

const TermRow kTerm = term_row(kId, 9, kOther);
const SyncedWith kSynced = synced_with(kTerm);

TEST_CASE("Leader rows: each as the page has it, and back") {
  const std::string line = R"("line":[")" + std::string(kId) + R"(",")" + kOther + R"("])";
  CHECK(encode_term_row(kTerm) ==
        R"({"id":")" + std::string(kId) + R"(","number":9,)" + line + "}");
  CHECK(decode_term_row(encode_term_row(kTerm)) == kTerm);
  CHECK(encode_standby_row("b:1") == R"({"name":"b:1"})");
  CHECK(decode_standby_row(encode_standby_row("b:1")) == "b:1");
  CHECK(encode_synced_row(kSynced) ==
        R"({"id":")" + std::string(kId) + R"(","number":9,"leader":"a:1",)" + line + "}");
  CHECK(decode_synced_row(encode_synced_row(kSynced)) == kSynced);
  CHECK(encode_copy_row("a:1") == R"({"leader":"a:1"})");
  CHECK(decode_copy_row(encode_copy_row("a:1")) == "a:1");
  CHECK(encode_given_up_row({kOther}) == R"({"line":[")" + std::string(kOther) + R"("]})");
  CHECK(decode_given_up_row(encode_given_up_row({kOther})) == TermLine{kOther});
}

TEST_CASE("Leader rows: nonsense is none of them") {
  for (const std::string nonsense :
       {"", "[]", "{}", R"({"name":1,"id":"x","number":1,"leader":1,"line":["x"]})"}) {
    CHECK_FALSE(decode_term_row(nonsense));
    CHECK_FALSE(decode_standby_row(nonsense));
    CHECK_FALSE(decode_synced_row(nonsense));
    CHECK_FALSE(decode_copy_row(nonsense));
    CHECK_FALSE(decode_given_up_row(nonsense));
  }
  TermRow other_line = kTerm;
  other_line.line = {kOther, kId};
  CHECK_FALSE(decode_term_row(encode_term_row(other_line)));
  other_line.line.assign(kMaxTermLine + 1, kId);
  CHECK_FALSE(decode_term_row(encode_term_row(other_line)));
}

TEST_CASE("Leader rows: what they say together, and nobody leads with what makes no sense") {
  const std::string term = encode_term_row(kTerm), synced = encode_synced_row(kSynced);
  CHECK(read_leader_rows({}).kind == RowsKind::kEmpty);
  CHECK(read_leader_rows({{kGivenUpRow, encode_given_up_row({kId})}}).kind == RowsKind::kEmpty);
  const LeaderRows alone = read_leader_rows({{"jobs/1/job", "{}"}});  // of no pair
  CHECK((alone.kind == RowsKind::kLeads && alone.term.id.empty() && !alone.has_standby));

  const LeaderRows leads = read_leader_rows({{kTermRow, term}});
  CHECK(leads.kind == RowsKind::kLeads);
  CHECK((leads.term == kTerm.term && leads.line == kTerm.line && !leads.has_standby));
  CHECK(read_leader_rows({{kTermRow, term}, {kStandbyRow, "?"}}).has_standby);

  const LeaderRows is_synced = read_leader_rows({{kSyncedRow, synced}, {kBeforeRow, "x"}});
  CHECK(is_synced.kind == RowsKind::kSynced);
  CHECK((is_synced.term == kSynced.term && is_synced.line == kSynced.line));
  CHECK(is_synced.leader == "a:1");

  const LeaderRows copy = read_leader_rows({{kCopyRow, encode_copy_row("a:1")}});
  CHECK((copy.kind == RowsKind::kCopy && copy.leader == "a:1" && copy.line.empty()));
  CHECK_FALSE(copy.are_lost);

  for (const Rows& rows : std::initializer_list<Rows>{{{kTermRow, "?"}},
                                                      {{kSyncedRow, "?"}},
                                                      {{kCopyRow, "?"}},
                                                      {{kStandbyRow, encode_standby_row("b")}},
                                                      {{kTermRow, term}, {kSyncedRow, synced}},
                                                      {{kTermRow, term}, {kCopyRow, "?"}},
                                                      {{kSyncedRow, synced}, {kStandbyRow, "b"}},
                                                      {{kTermRow, term}, {kGivenUpRow, "?"}}}) {
    CHECK(read_leader_rows(rows).kind == RowsKind::kCopy);
  }
}

TEST_CASE("Leader rows: whosever they were, where some are lost they are a copy's") {
  CHECK(encode_copy_row_of_lost() == R"({"leader":"","lost":true})");
  CHECK(decode_copy_row(encode_copy_row_of_lost()) == "");
  CHECK_FALSE(is_copy_row_of_lost(R"({"leader":"","lost":1})"));
  const Rows leads{{kTermRow, encode_term_row(kTerm)}, {kStandbyRow, encode_standby_row("b")}};
  const Rows synced{{kSyncedRow, encode_synced_row(kSynced)},
                    {kGivenUpRow, encode_given_up_row({kOther})}};
  for (const Rows& before : std::initializer_list<Rows>{{}, leads, synced}) {
    Rows rows = before;
    apply_batch(rows_lost(), rows);
    const LeaderRows read = read_leader_rows(rows);
    CHECK((read.kind == RowsKind::kCopy && read.are_lost && read.line.empty()));
    CHECK(read.given_up == read_leader_rows(before).given_up);
    rows.erase(kCopyRow);  // a person decides
    CHECK(rows == before);
  }
  Rows again = leads;
  apply_batch(rows_lost(), again);
  apply_batch(copy_begun("b:1"), again);
  CHECK((again.size() == 1 && !read_leader_rows(again).are_lost));
}

TEST_CASE("Leader rows: a line with what a peer gave up begins with its own term") {
  CHECK(line_with({kId, kOther}, {}) == TermLine{kId, kOther});
  const std::string third(32, 'a'), fourth(32, 'b');
  CHECK(line_with({kId, kOther}, {third, kOther, fourth}) == TermLine{kId, third, kOther, fourth});
  TermLine many;
  for (int i = 0; i < 16; ++i) many.push_back(std::string(31, '0') + "0123456789abcdef"[i]);
  const TermLine full = line_with(many, {third, fourth});
  CHECK(full.size() == kMaxTermLine);
  CHECK((full[0] == many[0] && full[1] == third && full[2] == fourth && full[3] == many[1]));
}

TEST_CASE("Leader rows: a standby's way from a copy to a term of its own") {
  Rows rows;
  apply_batch(term_begun(kTerm, rows), rows);
  apply_batch(standby_came("b:1", kTerm), rows);
  CHECK(read_leader_rows(rows).has_standby);
  apply_batch(standby_left(), rows);
  CHECK_FALSE(read_leader_rows(rows).has_standby);
  apply_batch(standby_came("b:1", kTerm), rows);
  apply_batch(term_given_up(kOther, {}), rows);
  apply_batch(term_given_up(kId, {kOther, kId}), rows);
  CHECK(read_leader_rows(rows).given_up == TermLine{kId, kOther});

  apply_batch(copy_begun("a:1"), rows);
  CHECK(read_leader_rows(rows).kind == RowsKind::kCopy);
  CHECK(read_leader_rows(rows).given_up == TermLine{kId, kOther});
  rows[kBeforeRow] = "the last batch's";
  apply_batch(copy_synced(kSynced), rows);
  CHECK(read_leader_rows(rows).kind == RowsKind::kSynced);
  CHECK(read_leader_rows(rows).given_up.empty());
  CHECK(rows.contains(kBeforeRow));

  const TermRow next = term_row(kOther, 10, kId);
  apply_batch(term_begun(next, rows), rows);
  CHECK(rows == Rows{{kTermRow, encode_term_row(next)}});
}

}  // namespace
}  // namespace ddprun::ha
