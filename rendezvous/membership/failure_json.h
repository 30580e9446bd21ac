// SPDX-License-Identifier: Apache-2.0
// WorkerFailure as JSON, each text and list within its bound. Pure.
#pragma once

#include <boost/json/object.hpp>

#include "rendezvous/membership/json_fields.h"
#include "rendezvous/membership/messages.h"

namespace ddprun::membership {

// Only the last 20 of last_lines.
boost::json::object failure_object(const WorkerFailure& failure);

// Throws Error(kProtocol) that names the field.
WorkerFailure read_failure(const JsonFields& in);

}  // namespace ddprun::membership
