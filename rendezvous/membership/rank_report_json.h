// SPDX-License-Identifier: Apache-2.0
// RankReport, RankStepTime and TrainingStatus as JSON, each text and list within its bound. Pure.
#pragma once

#include <boost/json/object.hpp>

#include "rendezvous/membership/json_fields.h"
#include "rendezvous/membership/rank_report.h"

namespace ddprun::membership {

boost::json::object rank_report_object(const RankReport& report);
boost::json::object step_time_object(const RankStepTime& time);
boost::json::object training_object(const TrainingStatus& status);

// Throw Error(kProtocol) that names the field.
RankReport read_rank_report(const JsonFields& in);
RankStepTime read_step_time(const JsonFields& in);
TrainingStatus read_training(const JsonFields& in);

}  // namespace ddprun::membership
