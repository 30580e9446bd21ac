// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/etcd_codec.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <utility>

#include "common/byte_text.h"
#include "common/json.h"
#include "common/parsed_number.h"
#include "common/text.h"
#include "common/throw_error.h"

namespace ddprun::ha {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxShownBytes = 300;

[[noreturn]] void fail(const std::string& what) {
  throw_error(ErrorCode::kProtocol, "its answer is none of etcd's: ", what);
}

json::object object_of(std::string_view text) {
  auto object = parse_object(text);
  if (!object) fail(concat("\"", one_line(text.substr(0, 80)), "\" is no JSON object"));
  return std::move(*object);
}

const json::value* field(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains({name.data(), name.size()});
  return value == nullptr || value->is_null() ? nullptr : value;
}

const json::object* object_at(const json::object& object, std::string_view name) {
  const json::value* value = field(object, name);
  if (value == nullptr) return nullptr;
  if (!value->is_object()) fail(concat(name, " is no object"));
  return &value->get_object();
}

std::int64_t number_at(const json::object& object, std::string_view name) {
  const json::value* value = field(object, name);
  if (value == nullptr) return 0;
  if (const std::int64_t* number = value->if_int64()) return *number;
  const json::string* text = value->if_string();
  if (text == nullptr) fail(concat(name, " is no number"));
  const auto number = parsed_number<std::int64_t>(*text);
  if (!number) fail(concat(name, " is no number"));
  return *number;
}

bool flag_at(const json::object& object, std::string_view name) {
  const json::value* value = field(object, name);
  if (value == nullptr) return false;
  if (!value->is_bool()) fail(concat(name, " is neither true nor false"));
  return value->get_bool();
}

std::string text_at(const json::object& object, std::string_view name) {
  const json::value* value = field(object, name);
  if (value == nullptr) return {};
  if (!value->is_string()) fail(concat(name, " is no text"));
  return {value->get_string().data(), value->get_string().size()};
}

std::string bytes_at(const json::object& object, std::string_view name) {
  auto bytes = from_base64(text_at(object, name));
  if (!bytes) fail(concat(name, " is no base64"));
  return std::move(*bytes);
}

std::vector<const json::object*> objects_at(const json::object& object, std::string_view name) {
  std::vector<const json::object*> objects;
  const json::value* value = field(object, name);
  if (value == nullptr) return objects;
  if (!value->is_array()) fail(concat(name, " is no list"));
  for (const json::value& each : value->get_array()) {
    if (!each.is_object()) fail(concat(name, " has what is no object"));
    objects.push_back(&each.get_object());
  }
  return objects;
}

EtcdRefusal refusal_of(const json::object& error) {
  std::string message = text_at(error, "message");
  if (message.empty()) message = "it gives no reason";
  std::int64_t code = number_at(error, "code");
  if (code == 0) code = number_at(error, "grpc_code");
  return {code < 0 || code > 16 ? 2 : static_cast<int>(code),
          one_line(std::string_view(message).substr(0, kMaxShownBytes))};
}

// Unwraps a stream's answer. A refusal in a stream comes with HTTP's "200 OK".
json::object result_of(std::string_view line) {
  json::object outer = object_of(line);
  if (const json::object* error = object_at(outer, "error")) throw refusal_of(*error);
  json::value* result = outer.if_contains("result");
  if (result == nullptr || !result->is_object()) fail("it has no result");
  return std::move(result->get_object());
}

std::int64_t revision_of(const json::object& answer) {
  const json::object* header = object_at(answer, "header");
  const std::int64_t revision = header == nullptr ? 0 : number_at(*header, "revision");
  if (revision <= 0) fail("it has no revision");
  return revision;
}

RangeAnswer range_of(const json::object& answer) {
  RangeAnswer range;
  range.revision = revision_of(answer);
  range.more = flag_at(answer, "more");
  for (const json::object* each : objects_at(answer, "kvs")) {
    KeyValue& key = range.keys.emplace_back();
    key.key = bytes_at(*each, "key");
    key.value = bytes_at(*each, "value");
    key.create_revision = number_at(*each, "create_revision");
    key.mod_revision = number_at(*each, "mod_revision");
    key.lease = number_at(*each, "lease");
    if (key.key.empty() || key.create_revision <= 0 || key.mod_revision < key.create_revision) {
      fail("a key that can't be");
    }
  }
  return range;
}

json::object range_object(std::string_view key, std::string_view end, std::int64_t limit,
                          std::int64_t revision) {
  json::object request{{"key", to_base64(key)}};
  if (!end.empty()) request["range_end"] = to_base64(end);
  if (limit != 0) request["limit"] = std::to_string(limit);
  if (revision != 0) request["revision"] = std::to_string(revision);
  return request;
}

json::object change_object(const KeyChange& change) {
  json::object request{{"key", to_base64(change.key)}};
  if (change.value) {
    request["value"] = to_base64(*change.value);
    if (change.lease != 0) request["lease"] = std::to_string(change.lease);
    return json::object{{"request_put", std::move(request)}};
  }
  if (change.all_with_prefix) request["range_end"] = to_base64(end_of_prefix(change.key));
  return json::object{{"request_delete_range", std::move(request)}};
}

}  // namespace

bool EtcdRefusal::is_passing() const {
  switch (grpc_code_) {
    case 1:   // cancelled
    case 2:   // unknown
    case 4:   // deadline exceeded
    case 13:  // internal
    case 14:  // unavailable: no leader, a new leader, time-out
      return true;
    default:
      return false;
  }
}

std::string end_of_prefix(std::string prefix) {
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 0xff) prefix.pop_back();
  if (prefix.empty()) return std::string(1, '\0');  // no end: all keys
  prefix.back() = static_cast<char>(static_cast<unsigned char>(prefix.back()) + 1);
  return prefix;
}

std::string range_request(std::string_view key, std::string_view end, std::int64_t limit,
                          std::int64_t revision) {
  return json::serialize(range_object(key, end, limit, revision));
}

std::string txn_request(const std::vector<Guard>& guards, const std::vector<KeyChange>& changes) {
  json::array compare, success, failure;
  for (const Guard& guard : guards) {
    const auto add = [&](const char* target, const char* name, std::int64_t revision) {
      compare.push_back(json::object{{"key", to_base64(guard.key)},
                                     {"target", target},
                                     {"result", "EQUAL"},
                                     {name, std::to_string(revision)}});
    };
    if (guard.create_revision) add("CREATE", "create_revision", *guard.create_revision);
    if (guard.mod_revision) add("MOD", "mod_revision", *guard.mod_revision);
    // A full read, so that etcd asks its other members even if nothing is to be changed.
    failure.push_back(json::object{{"request_range", range_object(guard.key, {}, 0, 0)}});
  }
  for (const KeyChange& change : changes) success.push_back(change_object(change));
  return json::serialize(json::object{{"compare", std::move(compare)},
                                      {"success", std::move(success)},
                                      {"failure", std::move(failure)}});
}

std::string grant_request(std::int64_t ttl_seconds) {
  return json::serialize(json::object{{"TTL", std::to_string(ttl_seconds)}});
}

std::string lease_request(std::int64_t lease) {
  return json::serialize(json::object{{"ID", std::to_string(lease)}});
}

std::string compaction_request(std::int64_t revision) {
  return json::serialize(json::object{{"revision", std::to_string(revision)}});
}

std::string erasures_request(std::string_view key, std::int64_t revision) {
  return json::serialize(
      json::object{{"create_request", json::object{{"key", to_base64(key)},
                                                   {"start_revision", std::to_string(revision)},
                                                   {"filters", json::array{"NOPUT"}}}}});
}

RangeAnswer parse_range(std::string_view answer) { return range_of(object_of(answer)); }

TxnResult parse_txn(std::string_view answer, std::size_t num_guards) {
  const json::object object = object_of(answer);
  TxnResult result;
  result.held = flag_at(object, "succeeded");
  result.revision = revision_of(object);
  if (result.held) return result;
  for (const json::object* each : objects_at(object, "responses")) {
    const json::object* range = object_at(*each, "response_range");
    if (range == nullptr) fail("a transaction that was not made has other answers");
    RangeAnswer found = range_of(*range);
    result.found.emplace_back();
    if (!found.keys.empty()) result.found.back() = std::move(found.keys.front());
  }
  if (result.found.size() != num_guards) fail("it lacks the keys of a transaction's guards");
  return result;
}

std::int64_t parse_grant(std::string_view answer) {
  const json::object object = object_of(answer);
  const std::int64_t lease = number_at(object, "ID");
  if (lease == 0) fail("it has no lease");
  return lease;
}

void parse_done(std::string_view answer) { revision_of(object_of(answer)); }

bool parse_keep_alive(std::string_view answer) {
  const json::object result = result_of(answer);
  revision_of(result);
  return number_at(result, "TTL") > 0;
}

WatchNews parse_watch(std::string_view line) {
  const json::object result = result_of(line);
  WatchNews news;
  news.cancelled = flag_at(result, "canceled");
  for (const json::object* event : objects_at(result, "events")) {
    if (text_at(*event, "type") == "DELETE") news.erased = true;
  }
  return news;
}

EtcdRefusal parse_refusal(std::string_view answer) { return refusal_of(object_of(answer)); }

}  // namespace ddprun::ha
