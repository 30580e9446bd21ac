// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/kept_messages.h"

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <optional>
#include <string>

#include "common/error.h"
#include "common/json.h"
#include "common/log.h"
#include "rendezvous/membership/codec.h"
#include "rendezvous/membership/json_fields.h"

namespace ddprun::membership {
namespace {

namespace json = boost::json;

json::object parse(std::string_view text) {
  auto object = parse_object(text);
  if (!object) throw Error(ErrorCode::kProtocol, "no kept message");
  return std::move(*object);
}

// Adds to `kept` what it lacks.
void complete(json::object& kept, const json::object& defaults) {
  for (const auto& [name, value] : defaults) {
    json::value* found = kept.if_contains(name);
    if (found == nullptr) {
      kept[name] = value;
    } else if (found->is_object() && value.is_object()) {
      complete(found->get_object(), value.get_object());
    }
  }
}

json::object defaults_of(const WorkerFailure& failure) {
  return parse(encode(AgentEnvelope{0, 0, WorkerFailed{0, failure}})).at("failure").as_object();
}

template <std::size_t Index = 0>
std::optional<RendezvousMessage> message_named(std::string_view type) {
  if constexpr (Index == variants::variant_size_v<RendezvousMessage>) {
    return std::nullopt;
  } else {
    const RendezvousMessage candidate{variants::in_place_index_t<Index>{}};
    return type == type_of(candidate) ? candidate : message_named<Index + 1>(type);
  }
}

}  // namespace

Join read_kept_join(std::string_view text) {
  json::object kept = parse(text);
  complete(kept, parse(encode(AgentEnvelope{0, 0, Join{}})));
  kept["version"] = kProtocolVersion;  // that of its ddprun, which may speak another one by now
  kept["oldest_version"] = kProtocolVersion;
  const AgentEnvelope envelope = decode_agent_message(json::serialize(kept));
  const auto* join = variants::get_if<Join>(&envelope.message);
  if (join == nullptr) throw Error(ErrorCode::kProtocol, "it is no \"join\"");
  return *join;
}

WorkerFailure read_kept_failure(std::string_view text) {
  json::object kept = parse(text);
  complete(kept, parse(encode(AgentEnvelope{0, 0, WorkerFailed{}})));
  const AgentEnvelope envelope = decode_agent_message(json::serialize(kept));
  const auto* failed = variants::get_if<WorkerFailed>(&envelope.message);
  if (failed == nullptr) throw Error(ErrorCode::kProtocol, "it is no \"worker_failed\"");
  return failed->failure;
}

RendezvousMessage read_kept_message(std::string_view text) {
  json::object kept = parse(text);
  const auto* type = kept.if_contains("type");
  const auto* name = type == nullptr ? nullptr : type->if_string();
  const auto message = name == nullptr ? std::nullopt : message_named({name->data(), name->size()});
  if (message) complete(kept, parse(encode(RendezvousEnvelope{0, 0, *message})));
  // Not in a default JobEnd.
  json::value* failure = kept.if_contains("first_failure");
  if (failure != nullptr && failure->is_object()) {
    complete(failure->get_object(), defaults_of(WorkerFailure{}));
  }
  return decode_rendezvous_message(json::serialize(kept)).message;
}

}  // namespace ddprun::membership
