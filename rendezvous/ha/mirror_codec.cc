// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/mirror_codec.h"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <utility>

#include "common/check.h"
#include "common/error.h"
#include "common/log.h"
#include "rendezvous/membership/json_fields.h"

namespace ddprun::ha::mirror {
namespace {

namespace json = boost::json;
using membership::clean_utf8;
using membership::counter_value;
using membership::JsonFields;
using membership::kMaxNameBytes;

constexpr std::size_t kMaxReasonBytes = 1024;
constexpr char kSnapshotMark = 's', kBatchMark = 'b';

[[noreturn]] void fail(const std::string& what) { throw Error(ErrorCode::kProtocol, what); }

json::object parse_message(std::string_view text) {
  if (text.size() > kMaxMirrorTextBytes) {
    fail(concat("a message of ", text.size(), " bytes is larger than allowed"));
  }
  boost::system::error_code error;
  json::value value = json::parse({text.data(), text.size()}, error);
  if (error || !value.is_object()) {
    fail(concat("\"", one_line(text.substr(0, 80)), "\" is no message of a mirror"));
  }
  return std::move(value.as_object());
}

std::string type_of(const json::object& message) {
  return JsonFields(message, "a mirror's message").text("type");
}

JsonFields fields_of(const json::object& message, const std::string& type) {
  return {message, concat("message \"", one_line(type), "\"")};
}

int version_in(const JsonFields& fields) { return fields.small("version", 1, 1'000'000); }

void add_number(std::string& bytes, std::uint64_t number) {
  for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift & 0xff);
}

std::uint64_t number_at(std::string_view bytes, std::size_t at, const char* what) {
  std::uint64_t number = 0;
  for (std::size_t i = at; i < at + 8; ++i) {
    number = number << 8 | static_cast<unsigned char>(bytes[i]);
  }
  if (number >> 63 != 0) fail(concat("a part's ", what, " is out of range"));
  return number;
}

}  // namespace

std::string encode(const StandbyMessage& message) {
  json::object text;
  if (const auto* hello = std::get_if<Hello>(&message)) {
    text["type"] = "hello";
    text["version"] = hello->version;
    text["name"] = clean_utf8(hello->name, kMaxNameBytes);
  } else if (const auto* got = std::get_if<Got>(&message)) {
    text["type"] = "got";
    text["bytes"] = counter_value(got->bytes);
  } else {
    text["type"] = "ack";
    text["number"] = counter_value(std::get<Ack>(message).number);
  }
  return json::serialize(text);
}

std::string encode(const LeaderMessage& message) {
  json::object text;
  if (const auto* welcome = std::get_if<Welcome>(&message)) {
    text["type"] = "welcome";
    text["version"] = welcome->version;
    text["name"] = clean_utf8(welcome->name, kMaxNameBytes);
    text["boot"] = clean_utf8(welcome->boot, kMaxNameBytes);
  } else if (const auto* refused = std::get_if<Refused>(&message)) {
    text["type"] = "refused";
    text["reason"] = clean_utf8(refused->reason, kMaxReasonBytes);
  } else {
    const TermId& id = std::get<InSync>(message).term;
    json::object term;
    term["id"] = id.id;
    term["number"] = counter_value(id.number);
    text["type"] = "in_sync";
    text["term"] = std::move(term);
  }
  return json::serialize(text);
}

std::string encode(const Part& part) {
  DDPRUN_CHECK(part.rows.size() <= kMaxPartBytes);
  std::string bytes;
  bytes.reserve(kPartHeaderBytes + part.rows.size());
  bytes += part.transfer == Transfer::kSnapshot ? kSnapshotMark : kBatchMark;
  bytes += part.is_last ? '\1' : '\0';
  add_number(bytes, part.number);
  add_number(bytes, static_cast<std::uint64_t>(part.monotonic_ns));
  bytes += part.rows;
  return bytes;
}

StandbyMessage decode_standby_message(std::string_view text) {
  const json::object message = parse_message(text);
  const std::string type = type_of(message);
  const JsonFields fields = fields_of(message, type);
  if (type == "hello") {
    Hello hello;
    hello.version = version_in(fields);
    hello.name = fields.clipped("name", kMaxNameBytes);
    return hello;
  }
  if (type == "got") return Got{fields.counter("bytes")};
  if (type == "ack") return Ack{fields.counter("number")};
  fail(concat("a standby sends no message \"", one_line(type.substr(0, 80)), "\""));
}

LeaderMessage decode_leader_message(std::string_view text) {
  const json::object message = parse_message(text);
  const std::string type = type_of(message);
  const JsonFields fields = fields_of(message, type);
  if (type == "welcome") {
    Welcome welcome;
    welcome.version = version_in(fields);
    welcome.name = fields.clipped("name", kMaxNameBytes);
    welcome.boot = fields.clipped("boot", kMaxNameBytes);
    return welcome;
  }
  if (type == "refused") return Refused{fields.clipped("reason", kMaxReasonBytes)};
  if (type == "in_sync") {
    const JsonFields term = fields.object("term");
    InSync in_sync;
    in_sync.term.id = term.text("id");
    in_sync.term.number = term.counter("number");
    if (!is_term_id(in_sync.term.id)) fail("message \"in_sync\": \"id\" is no term's");
    return in_sync;
  }
  fail(concat("a leader sends no message \"", one_line(type.substr(0, 80)), "\""));
}

Part decode_part(std::string_view bytes) {
  if (bytes.size() < kPartHeaderBytes) fail(concat("a part has ", bytes.size(), " bytes alone"));
  if (bytes.size() > kPartHeaderBytes + kMaxPartBytes) {
    fail(concat("a part of ", bytes.size(), " bytes is larger than allowed"));
  }
  Part part;
  if (bytes[0] == kSnapshotMark) {
    part.transfer = Transfer::kSnapshot;
  } else if (bytes[0] != kBatchMark) {
    fail("a part is neither a snapshot's nor a batch's");
  }
  if (bytes[1] != '\0' && bytes[1] != '\1') fail("a part is neither the last one nor another");
  part.is_last = bytes[1] == '\1';
  part.number = number_at(bytes, 2, "number");
  part.monotonic_ns = static_cast<std::int64_t>(number_at(bytes, 10, "clock"));
  part.rows = bytes.substr(kPartHeaderBytes);
  return part;
}

}  // namespace ddprun::ha::mirror
