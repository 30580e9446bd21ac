// SPDX-License-Identifier: Apache-2.0
// `ddprunctl report --json`: docs/run-report.md has the keys. Pure.
#pragma once

#include <string>

#include "ctl/report/facts.h"
#include "ctl/report/record.h"

namespace ddprun::report {

// One object, one line.
std::string facts_json(const Record& record, const Facts& facts);

}  // namespace ddprun::report
