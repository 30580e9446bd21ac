# SPDX-License-Identifier: Apache-2.0
"""All rows of bench/run.py, in the order of docs/benchmarks.md."""
import agent_load_rows
import allreduce_rows
import doctor_rows
import elastic_rows
import hang_rows
import inplace_rows
import launcher_rows
import metrics_rows
import observe_rows
import output_rows
import page_rows
import scale_rows
import sdk_rows
import service_rows
import ssh_rows
import store_rows
import submit_rows
import survival_rows
import torch_rows
import train_rows
import warm_rows


def all_rows():
    return (launcher_rows.rows() + warm_rows.rows() + output_rows.rows() + ssh_rows.rows() + elastic_rows.rows() + inplace_rows.rows() + hang_rows.rows() + scale_rows.rows() + doctor_rows.rows() + submit_rows.rows() + service_rows.rows() + metrics_rows.rows() + agent_load_rows.rows()
            + page_rows.rows()
            + store_rows.rows() + survival_rows.rows() + allreduce_rows.rows() + torch_rows.rows() + observe_rows.rows() + train_rows.rows()
            + sdk_rows.rows())
