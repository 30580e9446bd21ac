// SPDX-License-Identifier: Apache-2.0
// The rows of a journal that say whose it is: who leads, and who mirrors whom. Each side's own,
// never mirrored (docs/ha-standby.md has the list). Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/ha/pair_state.h"
#include "rendezvous/journal/row.h"

namespace ddprun::ha {

inline constexpr char kLeaderRows[] = "leader/";  // begins the name of each of them
inline constexpr char kTermRow[] = "leader/term";
inline constexpr char kStandbyRow[] = "leader/standby";
inline constexpr char kSyncedRow[] = "leader/synced";
inline constexpr char kCopyRow[] = "leader/copy";
inline constexpr char kBeforeRow[] = "leader/before";
inline constexpr char kGivenUpRow[] = "leader/given_up";

inline bool is_leader_row(std::string_view key) { return key.starts_with(kLeaderRows); }
bool has_leader_rows(const journal::Rows& rows);  // who keeps them is one of a pair

// Its own term: it leads, or led last.
struct TermRow {
  TermId term;
  TermLine line;  // begins with `term`

  friend bool operator==(const TermRow&, const TermRow&) = default;
};

// Of whose rows a standby has all that anybody was told of.
struct SyncedWith {
  TermId term;
  std::string leader;  // its name, for people
  TermLine line;       // begins with `term`

  friend bool operator==(const SyncedWith&, const SyncedWith&) = default;
};

bool is_term_id(std::string_view id);
// At most kMaxTermLine ids, of which the first is the term's.
bool is_line_of(const TermId& term, const TermLine& line);

// decode_…: nullopt: it is none.
std::string encode_term_row(const TermRow& row);
std::optional<TermRow> decode_term_row(std::string_view content);
std::string encode_standby_row(std::string_view name);
std::optional<std::string> decode_standby_row(std::string_view content);
std::string encode_synced_row(const SyncedWith& synced);
std::optional<SyncedWith> decode_synced_row(std::string_view content);
std::string encode_copy_row(std::string_view leader);
std::optional<std::string> decode_copy_row(std::string_view content);
std::string encode_copy_row_of_lost();
bool is_copy_row_of_lost(std::string_view content);
std::string encode_given_up_row(const TermLine& line);
std::optional<TermLine> decode_given_up_row(std::string_view content);

// `line` with terms that a peer gave up, behind its own: at most kMaxTermLine of them.
TermLine line_with(const TermLine& line, const TermLine& given_up);

// All that they say.
struct LeaderRows {
  RowsKind kind = RowsKind::kEmpty;
  TermId term;               // of kLeads (empty: there was none yet), kSynced
  TermLine line;             // likewise; begins with `term`
  bool has_standby = false;  // kLeads: a standby may have taken over
  std::string leader;        // of kSynced, kCopy: its name, for people
  bool are_lost = false;     // kCopy: for the journal was damaged
  TermLine given_up;

  friend bool operator==(const LeaderRows&, const LeaderRows&) = default;
};

// Rows that make no sense, one by one or together, are a copy's: nobody leads with them. Where
// there are others and none of these, who kept them was not one of a pair: kLeads, without a term.
LeaderRows read_leader_rows(const journal::Rows& rows);

// Changes of them, to be committed as one batch; rows that are not there are erased, too.

// It leads in that term. With `now`, the rows as they are: what isn't there is left out.
journal::Batch term_begun(const TermRow& row, const journal::Rows& now);
// It never leads in that term again; added to what it has given up before.
journal::Batch term_given_up(const std::string& term_id, const TermLine& given_up);
// The same term goes on from more terms.
journal::Batch line_grew(const TermRow& row);
// A standby may be told that it is in sync; `row` as the term is then.
journal::Batch standby_came(std::string_view name, const TermRow& row);
journal::Batch standby_left();
// The rows are that leader's, but not all of them.
journal::Batch copy_begun(std::string_view leader);
// Some of them are lost: a copy's. What the others say counts again once a person erases this one.
journal::Batch rows_lost();
// And now they are all. What the last batch replaced stays.
journal::Batch copy_synced(const SyncedWith& synced);

}  // namespace ddprun::ha
