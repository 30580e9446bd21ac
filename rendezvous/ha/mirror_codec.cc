// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/mirror_codec.h"

#include <algorithm>
#include <array>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <utility>

#include "common/check.h"
#include "common/error.h"
#include "common/log.h"
#include "rendezvous/ha/term_line_json.h"
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

// In the order of RowsKind.
constexpr std::array<const char*, 4> kKinds{"empty", "leads", "synced", "copy"};

bool is_of_term(RowsKind rows) { return rows == RowsKind::kLeads || rows == RowsKind::kSynced; }

json::object object_of(const TermId& id) {
  json::object term;
  term["id"] = id.id;
  term["number"] = counter_value(id.number);
  return term;
}

json::object object_of(const Hello& hello) {
  const PairState& state = hello.state;
  json::object text;
  text["type"] = "hello";
  text["version"] = hello.version;
  text["name"] = clean_utf8(state.name, kMaxNameBytes);
  text["first"] = state.is_first;
  text["leads"] = state.leads;
  text["rows"] = kKinds.at(static_cast<std::size_t>(state.rows));
  if (is_of_term(state.rows)) {
    text["term"] = object_of(state.term);
    text["line"] = json_of(state.line);
  }
  text["jobs"] = counter_value(state.num_jobs);
  text["held"] = counter_value(state.num_held);
  text["given_up"] = json_of(state.given_up);
  return text;
}

// With its line.
void read_term(const JsonFields& fields, TermId& term, TermLine& line) {
  const JsonFields its = fields.object("term");
  term.id = its.text("id");
  term.number = its.counter("number");
  line = line_in(fields, "line");
  if (!is_line_of(term, line)) fail("\"line\" does not begin with its term");
}

RowsKind kind_in(const JsonFields& fields) {
  const std::string text = fields.text("rows");
  const auto* const found = std::ranges::find(kKinds, text);
  if (found == kKinds.end()) {
    fail(concat("message \"hello\": \"rows\" is \"", one_line(text.substr(0, 80)), "\""));
  }
  return static_cast<RowsKind>(found - kKinds.begin());
}

Hello hello_in(const JsonFields& fields) {
  Hello hello;
  PairState& state = hello.state;
  hello.version = fields.small("version", 1, 1'000'000);
  // Cut last: what makes it one line makes it longer.
  state.name = clean_utf8(one_line(fields.text("name")), kMaxNameBytes);
  if (hello.version != kMirrorVersion) return hello;
  state.is_first = fields.boolean("first");
  state.leads = fields.boolean("leads");
  state.rows = kind_in(fields);
  if (is_of_term(state.rows)) read_term(fields, state.term, state.line);
  state.num_jobs = fields.counter("jobs");
  state.num_held = fields.counter("held");
  state.given_up = line_in(fields, "given_up");
  if (state.leads && state.rows != RowsKind::kLeads) fail("who leads has rows of its own");
  return hello;
}

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

std::string encode(const CallerMessage& message) {
  json::object text;
  if (const auto* hello = std::get_if<Hello>(&message)) {
    text = object_of(*hello);
  } else if (std::holds_alternative<Mirror>(message)) {
    text["type"] = "mirror";
  } else if (const auto* got = std::get_if<Got>(&message)) {
    text["type"] = "got";
    text["bytes"] = counter_value(got->bytes);
  } else if (const auto* ack = std::get_if<Ack>(&message)) {
    text["type"] = "ack";
    text["number"] = counter_value(ack->number);
  } else {
    text["type"] = "leaves";
  }
  return json::serialize(text);
}

std::string encode(const CalledMessage& message) {
  json::object text;
  if (const auto* hello = std::get_if<Hello>(&message)) {
    text = object_of(*hello);
  } else if (const auto* welcome = std::get_if<Welcome>(&message)) {
    text["type"] = "welcome";
    text["boot"] = clean_utf8(welcome->boot, kMaxNameBytes);
  } else if (const auto* refused = std::get_if<Refused>(&message)) {
    text["type"] = "refused";
    text["reason"] = clean_utf8(refused->reason, kMaxReasonBytes);
  } else if (const auto* in_sync = std::get_if<InSync>(&message)) {
    text["type"] = "in_sync";
    text["term"] = object_of(in_sync->term);
    text["line"] = json_of(in_sync->line);
  } else {
    text["type"] = "yours";
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

CallerMessage decode_caller_message(std::string_view text) {
  const json::object message = parse_message(text);
  const std::string type = type_of(message);
  const JsonFields fields = fields_of(message, type);
  if (type == "hello") return hello_in(fields);
  if (type == "mirror") return Mirror{};
  if (type == "got") return Got{fields.counter("bytes")};
  if (type == "ack") return Ack{fields.counter("number")};
  if (type == "leaves") return Leaves{};
  fail(concat("a caller sends no message \"", one_line(type.substr(0, 80)), "\""));
}

CalledMessage decode_called_message(std::string_view text) {
  const json::object message = parse_message(text);
  const std::string type = type_of(message);
  const JsonFields fields = fields_of(message, type);
  if (type == "hello") return hello_in(fields);
  if (type == "welcome") return Welcome{fields.clipped("boot", kMaxNameBytes)};
  if (type == "refused") return Refused{fields.clipped("reason", kMaxReasonBytes)};
  if (type == "in_sync") {
    InSync in_sync;
    read_term(fields, in_sync.term, in_sync.line);
    return in_sync;
  }
  if (type == "yours") return Yours{};
  fail(concat("who was called sends no message \"", one_line(type.substr(0, 80)), "\""));
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
