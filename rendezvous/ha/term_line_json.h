// SPDX-License-Identifier: Apache-2.0
// A line of terms as JSON: in rows of the journal and in messages of a mirror. Pure.
#pragma once

#include <boost/json/array.hpp>

#include "rendezvous/ha/pair_state.h"
#include "rendezvous/membership/json_fields.h"

namespace ddprun::ha {

boost::json::array json_of(const TermLine& line);
// Throws Error(kProtocol), as all that reads fields.
TermLine line_in(const membership::JsonFields& fields, const char* name);

}  // namespace ddprun::ha
