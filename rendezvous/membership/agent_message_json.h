// SPDX-License-Identifier: Apache-2.0
// What an agent says as JSON: the fields of each message, without the envelope's (codec.h). Pure.
#pragma once

#include <boost/json/object.hpp>
#include <string_view>

#include "rendezvous/membership/json_fields.h"
#include "rendezvous/membership/messages.h"

namespace ddprun::membership {

void put_message(boost::json::object& out, const AgentMessage& message);

// False: `type` is no such message's. Throws Error(kProtocol): what is wrong and at which field.
bool get_message(std::string_view type, const JsonFields& in, AgentMessage& message);

}  // namespace ddprun::membership
