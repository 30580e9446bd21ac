// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/leader_rows.h"

#include <algorithm>
#include <array>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <utility>

#include "common/error.h"
#include "common/hex.h"
#include "rendezvous/ha/term_line_json.h"
#include "rendezvous/membership/json_fields.h"

namespace ddprun::ha {
namespace {

namespace json = boost::json;
using journal::Batch;
using journal::Rows;
using membership::JsonFields;

std::string shown_name(std::string_view name) {
  return membership::clean_utf8(name, membership::kMaxNameBytes);
}

TermId term_in(const JsonFields& fields) { return {fields.text("id"), fields.counter("number")}; }

// What `read` makes of the row; nullopt: it makes no sense.
template <typename Read>
auto decode(std::string_view content, const char* row, Read read)
    -> std::optional<decltype(read(std::declval<const JsonFields&>()))> {
  boost::system::error_code error;
  const json::value value = json::parse({content.data(), content.size()}, error);
  if (error || !value.is_object()) return std::nullopt;
  try {
    return read(JsonFields(value.get_object(), row));
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string encode_name(const char* field, std::string_view name) {
  json::object row;
  row[field] = shown_name(name);
  return json::serialize(row);
}

std::optional<std::string> decode_name(std::string_view content, const char* row,
                                       const char* field) {
  return decode(content, row, [&](const JsonFields& fields) {
    return fields.clipped(field, membership::kMaxNameBytes);
  });
}

const std::string* find(const Rows& rows, const char* key) {
  const auto row = rows.find(key);
  return row == rows.end() ? nullptr : &row->second;
}

LeaderRows copy_of(std::string leader, TermLine given_up) {
  LeaderRows rows;
  rows.kind = RowsKind::kCopy;
  rows.leader = std::move(leader);
  rows.given_up = std::move(given_up);
  return rows;
}

}  // namespace

bool is_term_id(std::string_view id) {
  std::array<std::uint8_t, 16> bytes{};
  return from_hex(id, bytes);
}

bool is_line_of(const TermId& term, const TermLine& line) {
  return !line.empty() && line.size() <= kMaxTermLine && line.front() == term.id &&
         std::ranges::all_of(line, [](const auto& id) { return is_term_id(id); });
}

bool has_leader_rows(const Rows& rows) {
  return std::ranges::any_of(rows, [](const auto& row) { return is_leader_row(row.first); });
}

// ---- one row ----

std::string encode_term_row(const TermRow& row) {
  json::object text;
  text["id"] = row.term.id;
  text["number"] = membership::counter_value(row.term.number);
  text["line"] = json_of(row.line);
  return json::serialize(text);
}

std::optional<TermRow> decode_term_row(std::string_view content) {
  auto row = decode(content, kTermRow, [](const JsonFields& fields) {
    return TermRow{term_in(fields), line_in(fields, "line")};
  });
  if (row && !is_line_of(row->term, row->line)) return std::nullopt;
  return row;
}

std::string encode_standby_row(std::string_view name) { return encode_name("name", name); }
std::optional<std::string> decode_standby_row(std::string_view content) {
  return decode_name(content, kStandbyRow, "name");
}

std::string encode_synced_row(const SyncedWith& synced) {
  json::object text;
  text["id"] = synced.term.id;
  text["number"] = membership::counter_value(synced.term.number);
  text["leader"] = shown_name(synced.leader);
  text["line"] = json_of(synced.line);
  return json::serialize(text);
}

std::optional<SyncedWith> decode_synced_row(std::string_view content) {
  auto synced = decode(content, kSyncedRow, [](const JsonFields& fields) {
    return SyncedWith{term_in(fields), fields.clipped("leader", membership::kMaxNameBytes),
                      line_in(fields, "line")};
  });
  if (synced && !is_line_of(synced->term, synced->line)) return std::nullopt;
  return synced;
}

std::string encode_copy_row(std::string_view leader) { return encode_name("leader", leader); }
std::optional<std::string> decode_copy_row(std::string_view content) {
  return decode_name(content, kCopyRow, "leader");
}

std::string encode_copy_row_of_lost() { return R"({"leader":"","lost":true})"; }
bool is_copy_row_of_lost(std::string_view content) {
  return decode(
             content, kCopyRow,
             [](const JsonFields& fields) { return fields.has("lost") && fields.boolean("lost"); })
      .value_or(false);
}

std::string encode_given_up_row(const TermLine& line) {
  json::object text;
  text["line"] = json_of(line);
  return json::serialize(text);
}

std::optional<TermLine> decode_given_up_row(std::string_view content) {
  return decode(content, kGivenUpRow,
                [](const JsonFields& fields) { return line_in(fields, "line"); });
}

// ---- all of them ----

TermLine line_with(const TermLine& line, const TermLine& given_up) {
  TermLine longer;
  const auto add = [&](const std::string& id) {
    if (longer.size() < kMaxTermLine && !has_term(longer, id)) longer.push_back(id);
  };
  if (!line.empty()) add(line.front());
  for (const std::string& id : given_up) add(id);
  for (const std::string& id : line) add(id);
  return longer;
}

LeaderRows read_leader_rows(const Rows& rows) {
  const std::string *term = find(rows, kTermRow), *standby = find(rows, kStandbyRow),
                    *synced = find(rows, kSyncedRow), *copy = find(rows, kCopyRow),
                    *given_up = find(rows, kGivenUpRow);
  LeaderRows its;
  if (given_up != nullptr) {
    const auto line = decode_given_up_row(*given_up);
    if (!line) return copy_of({}, {});
    its.given_up = *line;
  }
  if (copy != nullptr) {
    LeaderRows copied = copy_of(decode_copy_row(*copy).value_or(""), its.given_up);
    copied.are_lost = is_copy_row_of_lost(*copy);
    return copied;
  }
  const bool is_one_kind = (term != nullptr) != (synced != nullptr);
  if (!is_one_kind && term == nullptr && standby == nullptr) {
    const bool has_others =
        std::ranges::any_of(rows, [](const auto& row) { return !is_leader_row(row.first); });
    if (has_others) its.kind = RowsKind::kLeads;
    return its;
  }
  if (!is_one_kind || (standby != nullptr && term == nullptr)) return copy_of({}, its.given_up);
  if (term != nullptr) {
    const auto row = decode_term_row(*term);
    if (!row) return copy_of({}, its.given_up);
    its.kind = RowsKind::kLeads;
    its.term = row->term;
    its.line = row->line;
    its.has_standby = standby != nullptr;  // whoever it was
  } else {
    const auto row = decode_synced_row(*synced);
    if (!row) return copy_of({}, its.given_up);
    its.kind = RowsKind::kSynced;
    its.term = row->term;
    its.line = row->line;
    its.leader = row->leader;
  }
  return its;
}

// ---- changes ----

Batch term_begun(const TermRow& row, const Rows& now) {
  Batch batch{{kTermRow, encode_term_row(row)}};
  for (const char* key : {kStandbyRow, kSyncedRow, kCopyRow, kBeforeRow}) {
    if (now.contains(key)) batch.push_back({key, std::nullopt});
  }
  return batch;
}

Batch term_given_up(const std::string& term_id, const TermLine& given_up) {
  TermLine line{term_id};
  for (const std::string& id : given_up) {
    if (id != term_id && line.size() < kMaxTermLine) line.push_back(id);
  }
  return {{kGivenUpRow, encode_given_up_row(line)}};
}

Batch line_grew(const TermRow& row) { return {{kTermRow, encode_term_row(row)}}; }

Batch standby_came(std::string_view name, const TermRow& row) {
  return {{kTermRow, encode_term_row(row)}, {kStandbyRow, encode_standby_row(name)}};
}

Batch standby_left() { return {{kStandbyRow, std::nullopt}}; }

Batch copy_begun(std::string_view leader) {
  return {{kCopyRow, encode_copy_row(leader)},
          {kTermRow, std::nullopt},
          {kStandbyRow, std::nullopt},
          {kSyncedRow, std::nullopt},
          {kBeforeRow, std::nullopt}};
}

Batch rows_lost() { return {{kCopyRow, encode_copy_row_of_lost()}}; }

Batch copy_synced(const SyncedWith& synced) {
  return {{kSyncedRow, encode_synced_row(synced)},
          {kCopyRow, std::nullopt},
          {kGivenUpRow, std::nullopt}};
}

}  // namespace ddprun::ha
