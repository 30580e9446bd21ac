// SPDX-License-Identifier: Apache-2.0
// What all of doctor's JSON has in common. Pure.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/string.hpp>
#include <string>

#include "ctl/doctor/finding.h"

namespace ddprun::doctor {

// JSON is UTF-8, and a path or a host's name may be anything: one line, what isn't valid replaced.
boost::json::string json_value(const std::string& text);

// docs/doctor.md has the keys.
boost::json::object finding_object(const Finding& finding);

}  // namespace ddprun::doctor
