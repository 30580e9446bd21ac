// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/leader_rows.h"

#include <array>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <utility>

#include "common/error.h"
#include "common/hex.h"
#include "rendezvous/membership/json_fields.h"

namespace ddprun::ha {
namespace {

namespace json = boost::json;
using membership::JsonFields;

std::optional<json::object> parse_row(std::string_view content) {
  boost::system::error_code error;
  json::value value = json::parse({content.data(), content.size()}, error);
  if (error || !value.is_object()) return std::nullopt;
  return std::move(value.as_object());
}

}  // namespace

bool is_term_id(std::string_view id) {
  std::array<std::uint8_t, 16> bytes{};
  return from_hex(id, bytes);
}

std::string encode_standby_row(std::string_view name) {
  json::object row;
  row["name"] = membership::clean_utf8(name, membership::kMaxNameBytes);
  return json::serialize(row);
}

std::optional<std::string> decode_standby_row(std::string_view content) {
  const auto row = parse_row(content);
  if (!row) return std::nullopt;
  try {
    return JsonFields(*row, kStandbyRow).clipped("name", membership::kMaxNameBytes);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string encode_synced_row(const SyncedWith& synced) {
  json::object row;
  row["id"] = synced.term.id;
  row["number"] = membership::counter_value(synced.term.number);
  row["leader"] = membership::clean_utf8(synced.leader, membership::kMaxNameBytes);
  return json::serialize(row);
}

std::optional<SyncedWith> decode_synced_row(std::string_view content) {
  const auto row = parse_row(content);
  if (!row) return std::nullopt;
  try {
    const JsonFields fields(*row, kSyncedRow);
    SyncedWith synced;
    synced.term.id = fields.text("id");
    synced.term.number = fields.counter("number");
    synced.leader = fields.clipped("leader", membership::kMaxNameBytes);
    if (!is_term_id(synced.term.id)) return std::nullopt;
    return synced;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace ddprun::ha
