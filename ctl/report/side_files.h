// SPDX-License-Identifier: Apache-2.0
// The files beside a job's events: `ddprun --report` and `train --json`, each one JSON object.
// Pure.
#pragma once

#include <boost/json/object.hpp>
#include <optional>

#include "ctl/report/record.h"

namespace ddprun::report {

// nullopt: the object is no such file.
std::optional<EndReport> end_report_of(const boost::json::object& object);
std::optional<TrainSummary> train_summary_of(const boost::json::object& object);

}  // namespace ddprun::report
