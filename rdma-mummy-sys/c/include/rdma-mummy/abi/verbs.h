/* By `cargo xtask bindings` of rdma-core 65.0-1.1, bindgen 0.73.2, libclang 18.1.1. Do not edit. */

#ifndef RDMA_MUMMY_ABI_VERBS_H
#define RDMA_MUMMY_ABI_VERBS_H

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include "../base.h"

RDMA_MUMMY_BEGIN

#define IBV_ADVISE_MR_FLAG_FLUSH 1
#define IBV_QPF_GRH_REQUIRED 1
#define IBV_ACCESS_OPTIONAL_RANGE 1072693248
#define IBV_ACCESS_OPTIONAL_FIRST 1048576
#define IBV_DEVICE_RAW_SCATTER_FCS 17179869184ULL
#define IBV_DEVICE_PCI_WRITE_END_PADDING 68719476736ULL
#define IBV_DEVICE_CC_DMA_BOUNCE 2199023255552ULL
#define ETHERNET_LL_SIZE 6
#define IB_ROCE_UDP_ENCAP_VALID_PORT_MIN 49152
#define IB_ROCE_UDP_ENCAP_VALID_PORT_MAX 65535
#define IB_GRH_FLOWLABEL_MASK 1048575

struct _compat_ibv_port_attr;
struct _ibv_device_ops;
struct ibv_ah;
struct ibv_ah_attr;
struct ibv_alloc_dm_attr;
struct ibv_async_event;
struct ibv_buf;
struct ibv_comp_channel;
struct ibv_comp_cntr;
struct ibv_comp_cntr_caps;
struct ibv_comp_cntr_init_attr;
struct ibv_context;
struct ibv_context_ops;
struct ibv_counter_attach_attr;
struct ibv_counters;
struct ibv_counters_init_attr;
struct ibv_cq;
struct ibv_cq_ex;
struct ibv_cq_init_attr_ex;
struct ibv_cq_moderation_caps;
struct ibv_data_buf;
struct ibv_device;
struct ibv_device_attr;
struct ibv_device_attr_ex;
struct ibv_dm;
struct ibv_dmah;
struct ibv_dmah_init_attr;
struct ibv_ece;
struct ibv_fd_arr;
struct ibv_flow;
struct ibv_flow_action;
struct ibv_flow_action_esp;
struct ibv_flow_action_esp_attr;
struct ibv_flow_action_esp_encap;
struct ibv_flow_action_esp_keymat_aes_gcm;
struct ibv_flow_action_esp_replay_bmp;
struct ibv_flow_attr;
struct ibv_flow_esp_filter;
struct ibv_flow_eth_filter;
struct ibv_flow_gre_filter;
struct ibv_flow_ipv4_ext_filter;
struct ibv_flow_ipv4_filter;
struct ibv_flow_ipv6_filter;
struct ibv_flow_mpls_filter;
struct ibv_flow_spec;
struct ibv_flow_spec_action_drop;
struct ibv_flow_spec_action_handle;
struct ibv_flow_spec_action_tag;
struct ibv_flow_spec_counter_action;
struct ibv_flow_spec_esp;
struct ibv_flow_spec_eth;
struct ibv_flow_spec_gre;
struct ibv_flow_spec_ipv4;
struct ibv_flow_spec_ipv4_ext;
struct ibv_flow_spec_ipv6;
struct ibv_flow_spec_mpls;
struct ibv_flow_spec_tcp_udp;
struct ibv_flow_spec_tunnel;
struct ibv_flow_tcp_udp_filter;
struct ibv_flow_tunnel_filter;
struct ibv_gid_entry;
struct ibv_global_route;
struct ibv_grh;
struct ibv_moderate_cq;
struct ibv_modify_cq_attr;
struct ibv_mr;
struct ibv_mr_init_attr;
struct ibv_mw;
struct ibv_mw_bind;
struct ibv_mw_bind_info;
struct ibv_odp_caps;
struct ibv_ops_wr;
struct ibv_packet_pacing_caps;
struct ibv_parent_domain_init_attr;
struct ibv_pci_atomic_caps;
struct ibv_pd;
struct ibv_poll_cq_attr;
struct ibv_port_attr;
struct ibv_qp;
struct ibv_qp_attach_comp_cntr_attr;
struct ibv_qp_attr;
struct ibv_qp_cap;
struct ibv_qp_ex;
struct ibv_qp_init_attr;
struct ibv_qp_init_attr_ex;
struct ibv_qp_open_attr;
struct ibv_qp_rate_limit_attr;
struct ibv_query_device_ex_input;
struct ibv_recv_wr;
struct ibv_rss_caps;
struct ibv_rwq_ind_table;
struct ibv_rwq_ind_table_init_attr;
struct ibv_rx_hash_conf;
struct ibv_send_wr;
struct ibv_sge;
struct ibv_srq;
struct ibv_srq_attr;
struct ibv_srq_init_attr;
struct ibv_srq_init_attr_ex;
struct ibv_td;
struct ibv_td_init_attr;
struct ibv_tm_cap;
struct ibv_tm_caps;
struct ibv_tso_caps;
struct ibv_values_ex;
struct ibv_wc;
struct ibv_wc_tm_info;
struct ibv_wq;
struct ibv_wq_attr;
struct ibv_wq_init_attr;
struct ibv_xrcd;
struct ibv_xrcd_init_attr;
struct verbs_context;
union ibv_gid;

enum ibv_flow_action_esp_keymat {
	IBV_FLOW_ACTION_ESP_KEYMAT_AES_GCM = 0,
};

enum ibv_flow_action_esp_keymat_aes_gcm_iv_algo {
	IBV_FLOW_ACTION_IV_ALGO_SEQ = 0,
};

struct ibv_flow_action_esp_keymat_aes_gcm {
	__u64 iv;
	__u32 iv_algo;
	__u32 salt;
	__u32 icv_len;
	__u32 key_len;
	__u32 aes_key[8];
};

enum ibv_flow_action_esp_replay {
	IBV_FLOW_ACTION_ESP_REPLAY_NONE = 0,
	IBV_FLOW_ACTION_ESP_REPLAY_BMP = 1,
};

struct ibv_flow_action_esp_replay_bmp {
	__u32 size;
};

enum ibv_flow_action_esp_flags {
	IBV_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO = 0,
	IBV_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD = 1,
	IBV_FLOW_ACTION_ESP_FLAGS_TUNNEL = 0,
	IBV_FLOW_ACTION_ESP_FLAGS_TRANSPORT = 2,
	IBV_FLOW_ACTION_ESP_FLAGS_DECRYPT = 0,
	IBV_FLOW_ACTION_ESP_FLAGS_ENCRYPT = 4,
	IBV_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW = 8,
};

struct ibv_flow_action_esp_encap {
	__extension__ union {
		void *val_ptr;
		__u64 val_ptr_data_u64;
	};
	__extension__ union {
		struct ibv_flow_action_esp_encap *next_ptr;
		__u64 next_ptr_data_u64;
	};
	__u16 len;
	__u16 type;
};

struct ibv_flow_action_esp {
	__u32 spi;
	__u32 seq;
	__u32 tfc_pad;
	__u32 flags;
	__u64 hard_limit_pkts;
};

enum ibv_advise_mr_advice {
	IBV_ADVISE_MR_ADVICE_PREFETCH = 0,
	IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE = 1,
	IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = 2,
};

union ibv_gid {
	uint8_t raw[16];
	struct {
		__be64 subnet_prefix;
		__be64 interface_id;
	} global;
};

enum ibv_gid_type {
	IBV_GID_TYPE_IB = 0,
	IBV_GID_TYPE_ROCE_V1 = 1,
	IBV_GID_TYPE_ROCE_V2 = 2,
};

struct ibv_gid_entry {
	union ibv_gid gid;
	uint32_t gid_index;
	uint32_t port_num;
	uint32_t gid_type;
	uint32_t ndev_ifindex;
};

enum ibv_node_type {
	IBV_NODE_UNKNOWN = -1,
	IBV_NODE_CA = 1,
	IBV_NODE_SWITCH = 2,
	IBV_NODE_ROUTER = 3,
	IBV_NODE_RNIC = 4,
	IBV_NODE_USNIC = 5,
	IBV_NODE_USNIC_UDP = 6,
	IBV_NODE_UNSPECIFIED = 7,
};

enum ibv_transport_type {
	IBV_TRANSPORT_UNKNOWN = -1,
	IBV_TRANSPORT_IB = 0,
	IBV_TRANSPORT_IWARP = 1,
	IBV_TRANSPORT_USNIC = 2,
	IBV_TRANSPORT_USNIC_UDP = 3,
	IBV_TRANSPORT_UNSPECIFIED = 4,
};

enum ibv_device_cap_flags {
	IBV_DEVICE_RESIZE_MAX_WR = 1,
	IBV_DEVICE_BAD_PKEY_CNTR = 2,
	IBV_DEVICE_BAD_QKEY_CNTR = 4,
	IBV_DEVICE_RAW_MULTI = 8,
	IBV_DEVICE_AUTO_PATH_MIG = 16,
	IBV_DEVICE_CHANGE_PHY_PORT = 32,
	IBV_DEVICE_UD_AV_PORT_ENFORCE = 64,
	IBV_DEVICE_CURR_QP_STATE_MOD = 128,
	IBV_DEVICE_SHUTDOWN_PORT = 256,
	IBV_DEVICE_INIT_TYPE = 512,
	IBV_DEVICE_PORT_ACTIVE_EVENT = 1024,
	IBV_DEVICE_SYS_IMAGE_GUID = 2048,
	IBV_DEVICE_RC_RNR_NAK_GEN = 4096,
	IBV_DEVICE_SRQ_RESIZE = 8192,
	IBV_DEVICE_N_NOTIFY_CQ = 16384,
	IBV_DEVICE_MEM_WINDOW = 131072,
	IBV_DEVICE_UD_IP_CSUM = 262144,
	IBV_DEVICE_XRC = 1048576,
	IBV_DEVICE_MEM_MGT_EXTENSIONS = 2097152,
	IBV_DEVICE_MEM_WINDOW_TYPE_2A = 8388608,
	IBV_DEVICE_MEM_WINDOW_TYPE_2B = 16777216,
	IBV_DEVICE_RC_IP_CSUM = 33554432,
	IBV_DEVICE_RAW_IP_CSUM = 67108864,
	IBV_DEVICE_MANAGED_FLOW_STEERING = 536870912,
};

enum ibv_fork_status {
	IBV_FORK_DISABLED = 0,
	IBV_FORK_ENABLED = 1,
	IBV_FORK_UNNEEDED = 2,
};

enum ibv_atomic_cap {
	IBV_ATOMIC_NONE = 0,
	IBV_ATOMIC_HCA = 1,
	IBV_ATOMIC_GLOB = 2,
};

struct ibv_alloc_dm_attr {
	size_t length;
	uint32_t log_align_req;
	uint32_t comp_mask;
};

enum ibv_dm_mask {
	IBV_DM_MASK_HANDLE = 1,
};

struct ibv_dm {
	struct ibv_context *context;
	int (*memcpy_to_dm)(struct ibv_dm *, uint64_t, const void *, size_t);
	int (*memcpy_from_dm)(void *, struct ibv_dm *, uint64_t, size_t);
	uint32_t comp_mask;
	uint32_t handle;
};

struct ibv_device_attr {
	char fw_ver[64];
	__be64 node_guid;
	__be64 sys_image_guid;
	uint64_t max_mr_size;
	uint64_t page_size_cap;
	uint32_t vendor_id;
	uint32_t vendor_part_id;
	uint32_t hw_ver;
	int max_qp;
	int max_qp_wr;
	unsigned int device_cap_flags;
	int max_sge;
	int max_sge_rd;
	int max_cq;
	int max_cqe;
	int max_mr;
	int max_pd;
	int max_qp_rd_atom;
	int max_ee_rd_atom;
	int max_res_rd_atom;
	int max_qp_init_rd_atom;
	int max_ee_init_rd_atom;
	enum ibv_atomic_cap atomic_cap;
	int max_ee;
	int max_rdd;
	int max_mw;
	int max_raw_ipv6_qp;
	int max_raw_ethy_qp;
	int max_mcast_grp;
	int max_mcast_qp_attach;
	int max_total_mcast_qp_attach;
	int max_ah;
	int max_fmr;
	int max_map_per_fmr;
	int max_srq;
	int max_srq_wr;
	int max_srq_sge;
	uint16_t max_pkeys;
	uint8_t local_ca_ack_delay;
	uint8_t phys_port_cnt;
};

struct ibv_query_device_ex_input {
	uint32_t comp_mask;
};

enum ibv_odp_general_caps {
	IBV_ODP_SUPPORT = 1,
	IBV_ODP_SUPPORT_IMPLICIT = 2,
};

enum ibv_odp_transport_cap_bits {
	IBV_ODP_SUPPORT_SEND = 1,
	IBV_ODP_SUPPORT_RECV = 2,
	IBV_ODP_SUPPORT_WRITE = 4,
	IBV_ODP_SUPPORT_READ = 8,
	IBV_ODP_SUPPORT_ATOMIC = 16,
	IBV_ODP_SUPPORT_SRQ_RECV = 32,
	IBV_ODP_SUPPORT_FLUSH = 64,
	IBV_ODP_SUPPORT_ATOMIC_WRITE = 128,
};

struct ibv_odp_caps {
	uint64_t general_caps;
	struct {
		uint32_t rc_odp_caps;
		uint32_t uc_odp_caps;
		uint32_t ud_odp_caps;
	} per_transport_caps;
};

struct ibv_tso_caps {
	uint32_t max_tso;
	uint32_t supported_qpts;
};

enum ibv_rx_hash_function_flags {
	IBV_RX_HASH_FUNC_TOEPLITZ = 1,
};

enum ibv_rx_hash_fields {
	IBV_RX_HASH_SRC_IPV4 = 1,
	IBV_RX_HASH_DST_IPV4 = 2,
	IBV_RX_HASH_SRC_IPV6 = 4,
	IBV_RX_HASH_DST_IPV6 = 8,
	IBV_RX_HASH_SRC_PORT_TCP = 16,
	IBV_RX_HASH_DST_PORT_TCP = 32,
	IBV_RX_HASH_SRC_PORT_UDP = 64,
	IBV_RX_HASH_DST_PORT_UDP = 128,
	IBV_RX_HASH_IPSEC_SPI = 256,
	IBV_RX_HASH_INNER = (-2147483647 - 1),
};

struct ibv_rss_caps {
	uint32_t supported_qpts;
	uint32_t max_rwq_indirection_tables;
	uint32_t max_rwq_indirection_table_size;
	uint64_t rx_hash_fields_mask;
	uint8_t rx_hash_function;
};

struct ibv_packet_pacing_caps {
	uint32_t qp_rate_limit_min;
	uint32_t qp_rate_limit_max;
	uint32_t supported_qpts;
};

enum ibv_raw_packet_caps {
	IBV_RAW_PACKET_CAP_CVLAN_STRIPPING = 1,
	IBV_RAW_PACKET_CAP_SCATTER_FCS = 2,
	IBV_RAW_PACKET_CAP_IP_CSUM = 4,
	IBV_RAW_PACKET_CAP_DELAY_DROP = 8,
};

enum ibv_tm_cap_flags {
	IBV_TM_CAP_RC = 1,
};

struct ibv_tm_caps {
	uint32_t max_rndv_hdr_size;
	uint32_t max_num_tags;
	uint32_t flags;
	uint32_t max_ops;
	uint32_t max_sge;
};

struct ibv_cq_moderation_caps {
	uint16_t max_cq_count;
	uint16_t max_cq_period;
};

enum ibv_pci_atomic_op_size {
	IBV_PCI_ATOMIC_OPERATION_4_BYTE_SIZE_SUP = 1,
	IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP = 2,
	IBV_PCI_ATOMIC_OPERATION_16_BYTE_SIZE_SUP = 4,
};

struct ibv_pci_atomic_caps {
	uint16_t fetch_add;
	uint16_t swap;
	uint16_t compare_swap;
};

struct ibv_device_attr_ex {
	struct ibv_device_attr orig_attr;
	uint32_t comp_mask;
	struct ibv_odp_caps odp_caps;
	uint64_t completion_timestamp_mask;
	uint64_t hca_core_clock;
	uint64_t device_cap_flags_ex;
	struct ibv_tso_caps tso_caps;
	struct ibv_rss_caps rss_caps;
	uint32_t max_wq_type_rq;
	struct ibv_packet_pacing_caps packet_pacing_caps;
	uint32_t raw_packet_caps;
	struct ibv_tm_caps tm_caps;
	struct ibv_cq_moderation_caps cq_mod_caps;
	uint64_t max_dm_size;
	struct ibv_pci_atomic_caps pci_atomic_caps;
	uint32_t xrc_odp_caps;
	uint32_t phys_port_cnt_ex;
};

enum ibv_mtu {
	IBV_MTU_256 = 1,
	IBV_MTU_512 = 2,
	IBV_MTU_1024 = 3,
	IBV_MTU_2048 = 4,
	IBV_MTU_4096 = 5,
};

enum ibv_port_state {
	IBV_PORT_NOP = 0,
	IBV_PORT_DOWN = 1,
	IBV_PORT_INIT = 2,
	IBV_PORT_ARMED = 3,
	IBV_PORT_ACTIVE = 4,
	IBV_PORT_ACTIVE_DEFER = 5,
};

enum {
	IBV_LINK_LAYER_UNSPECIFIED = 0,
	IBV_LINK_LAYER_INFINIBAND = 1,
	IBV_LINK_LAYER_ETHERNET = 2,
};

enum ibv_port_cap_flags {
	IBV_PORT_SM = 2,
	IBV_PORT_NOTICE_SUP = 4,
	IBV_PORT_TRAP_SUP = 8,
	IBV_PORT_OPT_IPD_SUP = 16,
	IBV_PORT_AUTO_MIGR_SUP = 32,
	IBV_PORT_SL_MAP_SUP = 64,
	IBV_PORT_MKEY_NVRAM = 128,
	IBV_PORT_PKEY_NVRAM = 256,
	IBV_PORT_LED_INFO_SUP = 512,
	IBV_PORT_SYS_IMAGE_GUID_SUP = 2048,
	IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP = 4096,
	IBV_PORT_EXTENDED_SPEEDS_SUP = 16384,
	IBV_PORT_CAP_MASK2_SUP = 32768,
	IBV_PORT_CM_SUP = 65536,
	IBV_PORT_SNMP_TUNNEL_SUP = 131072,
	IBV_PORT_REINIT_SUP = 262144,
	IBV_PORT_DEVICE_MGMT_SUP = 524288,
	IBV_PORT_VENDOR_CLASS_SUP = 1048576,
	IBV_PORT_DR_NOTICE_SUP = 2097152,
	IBV_PORT_CAP_MASK_NOTICE_SUP = 4194304,
	IBV_PORT_BOOT_MGMT_SUP = 8388608,
	IBV_PORT_LINK_LATENCY_SUP = 16777216,
	IBV_PORT_CLIENT_REG_SUP = 33554432,
	IBV_PORT_IP_BASED_GIDS = 67108864,
};

enum ibv_port_cap_flags2 {
	IBV_PORT_SET_NODE_DESC_SUP = 1,
	IBV_PORT_INFO_EXT_SUP = 2,
	IBV_PORT_VIRT_SUP = 4,
	IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP = 8,
	IBV_PORT_LINK_WIDTH_2X_SUP = 16,
	IBV_PORT_LINK_SPEED_HDR_SUP = 32,
	IBV_PORT_LINK_SPEED_NDR_SUP = 1024,
	IBV_PORT_LINK_SPEED_XDR_SUP = 4096,
};

struct ibv_port_attr {
	enum ibv_port_state state;
	enum ibv_mtu max_mtu;
	enum ibv_mtu active_mtu;
	int gid_tbl_len;
	uint32_t port_cap_flags;
	uint32_t max_msg_sz;
	uint32_t bad_pkey_cntr;
	uint32_t qkey_viol_cntr;
	uint16_t pkey_tbl_len;
	uint16_t lid;
	uint16_t sm_lid;
	uint8_t lmc;
	uint8_t max_vl_num;
	uint8_t sm_sl;
	uint8_t subnet_timeout;
	uint8_t init_type_reply;
	uint8_t active_width;
	uint8_t active_speed;
	uint8_t phys_state;
	uint8_t link_layer;
	uint8_t flags;
	uint16_t port_cap_flags2;
	uint32_t active_speed_ex;
};

enum ibv_event_type {
	IBV_EVENT_CQ_ERR = 0,
	IBV_EVENT_QP_FATAL = 1,
	IBV_EVENT_QP_REQ_ERR = 2,
	IBV_EVENT_QP_ACCESS_ERR = 3,
	IBV_EVENT_COMM_EST = 4,
	IBV_EVENT_SQ_DRAINED = 5,
	IBV_EVENT_PATH_MIG = 6,
	IBV_EVENT_PATH_MIG_ERR = 7,
	IBV_EVENT_DEVICE_FATAL = 8,
	IBV_EVENT_PORT_ACTIVE = 9,
	IBV_EVENT_PORT_ERR = 10,
	IBV_EVENT_LID_CHANGE = 11,
	IBV_EVENT_PKEY_CHANGE = 12,
	IBV_EVENT_SM_CHANGE = 13,
	IBV_EVENT_SRQ_ERR = 14,
	IBV_EVENT_SRQ_LIMIT_REACHED = 15,
	IBV_EVENT_QP_LAST_WQE_REACHED = 16,
	IBV_EVENT_CLIENT_REREGISTER = 17,
	IBV_EVENT_GID_CHANGE = 18,
	IBV_EVENT_WQ_FATAL = 19,
	IBV_EVENT_DEVICE_SPEED_CHANGE = 20,
};

struct ibv_async_event {
	union {
		struct ibv_cq *cq;
		struct ibv_qp *qp;
		struct ibv_srq *srq;
		struct ibv_wq *wq;
		int port_num;
	} element;
	enum ibv_event_type event_type;
};

enum ibv_wc_status {
	IBV_WC_SUCCESS = 0,
	IBV_WC_LOC_LEN_ERR = 1,
	IBV_WC_LOC_QP_OP_ERR = 2,
	IBV_WC_LOC_EEC_OP_ERR = 3,
	IBV_WC_LOC_PROT_ERR = 4,
	IBV_WC_WR_FLUSH_ERR = 5,
	IBV_WC_MW_BIND_ERR = 6,
	IBV_WC_BAD_RESP_ERR = 7,
	IBV_WC_LOC_ACCESS_ERR = 8,
	IBV_WC_REM_INV_REQ_ERR = 9,
	IBV_WC_REM_ACCESS_ERR = 10,
	IBV_WC_REM_OP_ERR = 11,
	IBV_WC_RETRY_EXC_ERR = 12,
	IBV_WC_RNR_RETRY_EXC_ERR = 13,
	IBV_WC_LOC_RDD_VIOL_ERR = 14,
	IBV_WC_REM_INV_RD_REQ_ERR = 15,
	IBV_WC_REM_ABORT_ERR = 16,
	IBV_WC_INV_EECN_ERR = 17,
	IBV_WC_INV_EEC_STATE_ERR = 18,
	IBV_WC_FATAL_ERR = 19,
	IBV_WC_RESP_TIMEOUT_ERR = 20,
	IBV_WC_GENERAL_ERR = 21,
	IBV_WC_TM_ERR = 22,
	IBV_WC_TM_RNDV_INCOMPLETE = 23,
};

const char *ibv_wc_status_str(enum ibv_wc_status status) RDMA_MUMMY_SYMBOL(ibv_wc_status_str);

enum ibv_wc_opcode {
	IBV_WC_SEND = 0,
	IBV_WC_RDMA_WRITE = 1,
	IBV_WC_RDMA_READ = 2,
	IBV_WC_COMP_SWAP = 3,
	IBV_WC_FETCH_ADD = 4,
	IBV_WC_BIND_MW = 5,
	IBV_WC_LOCAL_INV = 6,
	IBV_WC_TSO = 7,
	IBV_WC_FLUSH = 8,
	IBV_WC_ATOMIC_WRITE = 9,
	IBV_WC_RECV = 128,
	IBV_WC_RECV_RDMA_WITH_IMM = 129,
	IBV_WC_TM_ADD = 130,
	IBV_WC_TM_DEL = 131,
	IBV_WC_TM_SYNC = 132,
	IBV_WC_TM_RECV = 133,
	IBV_WC_TM_NO_TAG = 134,
	IBV_WC_DRIVER1 = 135,
	IBV_WC_DRIVER2 = 136,
	IBV_WC_DRIVER3 = 137,
};

enum {
	IBV_WC_IP_CSUM_OK_SHIFT = 2,
};

enum ibv_create_cq_wc_flags {
	IBV_WC_EX_WITH_BYTE_LEN = 1,
	IBV_WC_EX_WITH_IMM = 2,
	IBV_WC_EX_WITH_QP_NUM = 4,
	IBV_WC_EX_WITH_SRC_QP = 8,
	IBV_WC_EX_WITH_SLID = 16,
	IBV_WC_EX_WITH_SL = 32,
	IBV_WC_EX_WITH_DLID_PATH_BITS = 64,
	IBV_WC_EX_WITH_COMPLETION_TIMESTAMP = 128,
	IBV_WC_EX_WITH_CVLAN = 256,
	IBV_WC_EX_WITH_FLOW_TAG = 512,
	IBV_WC_EX_WITH_TM_INFO = 1024,
	IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 2048,
};

enum {
	IBV_WC_STANDARD_FLAGS = 127,
};

enum {
	IBV_CREATE_CQ_SUP_WC_FLAGS = 4095,
};

enum ibv_wc_flags {
	IBV_WC_GRH = 1,
	IBV_WC_WITH_IMM = 2,
	IBV_WC_IP_CSUM_OK = 4,
	IBV_WC_WITH_INV = 8,
	IBV_WC_TM_SYNC_REQ = 16,
	IBV_WC_TM_MATCH = 32,
	IBV_WC_TM_DATA_VALID = 64,
};

struct ibv_wc {
	uint64_t wr_id;
	enum ibv_wc_status status;
	enum ibv_wc_opcode opcode;
	uint32_t vendor_err;
	uint32_t byte_len;
	__extension__ union {
		__be32 imm_data;
		uint32_t invalidated_rkey;
	};
	uint32_t qp_num;
	uint32_t src_qp;
	unsigned int wc_flags;
	uint16_t pkey_index;
	uint16_t slid;
	uint8_t sl;
	uint8_t dlid_path_bits;
};

enum ibv_access_flags {
	IBV_ACCESS_LOCAL_WRITE = 1,
	IBV_ACCESS_REMOTE_WRITE = 2,
	IBV_ACCESS_REMOTE_READ = 4,
	IBV_ACCESS_REMOTE_ATOMIC = 8,
	IBV_ACCESS_MW_BIND = 16,
	IBV_ACCESS_ZERO_BASED = 32,
	IBV_ACCESS_ON_DEMAND = 64,
	IBV_ACCESS_HUGETLB = 128,
	IBV_ACCESS_FLUSH_GLOBAL = 256,
	IBV_ACCESS_FLUSH_PERSISTENT = 512,
	IBV_ACCESS_RELAXED_ORDERING = 1048576,
};

struct ibv_mw_bind_info {
	struct ibv_mr *mr;
	uint64_t addr;
	uint64_t length;
	unsigned int mw_access_flags;
};

struct ibv_dmah {
	struct ibv_context *context;
};

struct ibv_pd {
	struct ibv_context *context;
	uint32_t handle;
};

struct ibv_td_init_attr {
	uint32_t comp_mask;
};

struct ibv_td {
	struct ibv_context *context;
};

enum ibv_xrcd_init_attr_mask {
	IBV_XRCD_INIT_ATTR_FD = 1,
	IBV_XRCD_INIT_ATTR_OFLAGS = 2,
	IBV_XRCD_INIT_ATTR_RESERVED = 4,
};

struct ibv_xrcd_init_attr {
	uint32_t comp_mask;
	int fd;
	int oflags;
};

struct ibv_xrcd {
	struct ibv_context *context;
};

enum ibv_rereg_mr_flags {
	IBV_REREG_MR_CHANGE_TRANSLATION = 1,
	IBV_REREG_MR_CHANGE_PD = 2,
	IBV_REREG_MR_CHANGE_ACCESS = 4,
	IBV_REREG_MR_FLAGS_SUPPORTED = 7,
};

struct ibv_mr {
	struct ibv_context *context;
	struct ibv_pd *pd;
	void *addr;
	size_t length;
	uint32_t handle;
	uint32_t lkey;
	uint32_t rkey;
};

enum ibv_mr_init_attr_mask {
	IBV_REG_MR_MASK_IOVA = 1,
	IBV_REG_MR_MASK_ADDR = 2,
	IBV_REG_MR_MASK_FD = 4,
	IBV_REG_MR_MASK_FD_OFFSET = 8,
	IBV_REG_MR_MASK_DMAH = 16,
	IBV_REG_MR_MASK_BUF = 32,
};

struct ibv_mr_init_attr {
	size_t length;
	int access;
	uint64_t comp_mask;
	uint64_t iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	struct ibv_dmah *dmah;
	struct ibv_buf *buf;
};

enum ibv_mw_type {
	IBV_MW_TYPE_1 = 1,
	IBV_MW_TYPE_2 = 2,
};

struct ibv_mw {
	struct ibv_context *context;
	struct ibv_pd *pd;
	uint32_t rkey;
	uint32_t handle;
	enum ibv_mw_type type;
};

struct ibv_global_route {
	union ibv_gid dgid;
	uint32_t flow_label;
	uint8_t sgid_index;
	uint8_t hop_limit;
	uint8_t traffic_class;
};

struct ibv_grh {
	__be32 version_tclass_flow;
	__be16 paylen;
	uint8_t next_hdr;
	uint8_t hop_limit;
	union ibv_gid sgid;
	union ibv_gid dgid;
};

enum ibv_rate {
	IBV_RATE_MAX = 0,
	IBV_RATE_2_5_GBPS = 2,
	IBV_RATE_5_GBPS = 5,
	IBV_RATE_10_GBPS = 3,
	IBV_RATE_20_GBPS = 6,
	IBV_RATE_30_GBPS = 4,
	IBV_RATE_40_GBPS = 7,
	IBV_RATE_60_GBPS = 8,
	IBV_RATE_80_GBPS = 9,
	IBV_RATE_120_GBPS = 10,
	IBV_RATE_14_GBPS = 11,
	IBV_RATE_56_GBPS = 12,
	IBV_RATE_112_GBPS = 13,
	IBV_RATE_168_GBPS = 14,
	IBV_RATE_25_GBPS = 15,
	IBV_RATE_100_GBPS = 16,
	IBV_RATE_200_GBPS = 17,
	IBV_RATE_300_GBPS = 18,
	IBV_RATE_28_GBPS = 19,
	IBV_RATE_50_GBPS = 20,
	IBV_RATE_400_GBPS = 21,
	IBV_RATE_600_GBPS = 22,
	IBV_RATE_800_GBPS = 23,
	IBV_RATE_1200_GBPS = 24,
};

int ibv_rate_to_mult(enum ibv_rate rate) RDMA_MUMMY_SYMBOL(ibv_rate_to_mult);

enum ibv_rate mult_to_ibv_rate(int mult) RDMA_MUMMY_SYMBOL(mult_to_ibv_rate);

int ibv_rate_to_mbps(enum ibv_rate rate) RDMA_MUMMY_SYMBOL(ibv_rate_to_mbps);

enum ibv_rate mbps_to_ibv_rate(int mbps) RDMA_MUMMY_SYMBOL(mbps_to_ibv_rate);

struct ibv_ah_attr {
	struct ibv_global_route grh;
	uint16_t dlid;
	uint8_t sl;
	uint8_t src_path_bits;
	uint8_t static_rate;
	uint8_t is_global;
	uint8_t port_num;
};

enum ibv_srq_attr_mask {
	IBV_SRQ_MAX_WR = 1,
	IBV_SRQ_LIMIT = 2,
};

struct ibv_srq_attr {
	uint32_t max_wr;
	uint32_t max_sge;
	uint32_t srq_limit;
};

struct ibv_srq_init_attr {
	void *srq_context;
	struct ibv_srq_attr attr;
};

enum ibv_srq_type {
	IBV_SRQT_BASIC = 0,
	IBV_SRQT_XRC = 1,
	IBV_SRQT_TM = 2,
};

enum ibv_srq_init_attr_mask {
	IBV_SRQ_INIT_ATTR_TYPE = 1,
	IBV_SRQ_INIT_ATTR_PD = 2,
	IBV_SRQ_INIT_ATTR_XRCD = 4,
	IBV_SRQ_INIT_ATTR_CQ = 8,
	IBV_SRQ_INIT_ATTR_TM = 16,
	IBV_SRQ_INIT_ATTR_RESERVED = 32,
};

struct ibv_tm_cap {
	uint32_t max_num_tags;
	uint32_t max_ops;
};

struct ibv_srq_init_attr_ex {
	void *srq_context;
	struct ibv_srq_attr attr;
	uint32_t comp_mask;
	enum ibv_srq_type srq_type;
	struct ibv_pd *pd;
	struct ibv_xrcd *xrcd;
	struct ibv_cq *cq;
	struct ibv_tm_cap tm_cap;
};

enum ibv_wq_type {
	IBV_WQT_RQ = 0,
};

enum ibv_wq_init_attr_mask {
	IBV_WQ_INIT_ATTR_FLAGS = 1,
	IBV_WQ_INIT_ATTR_RESERVED = 2,
};

enum ibv_wq_flags {
	IBV_WQ_FLAGS_CVLAN_STRIPPING = 1,
	IBV_WQ_FLAGS_SCATTER_FCS = 2,
	IBV_WQ_FLAGS_DELAY_DROP = 4,
	IBV_WQ_FLAGS_PCI_WRITE_END_PADDING = 8,
	IBV_WQ_FLAGS_RESERVED = 16,
};

struct ibv_wq_init_attr {
	void *wq_context;
	enum ibv_wq_type wq_type;
	uint32_t max_wr;
	uint32_t max_sge;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	uint32_t comp_mask;
	uint32_t create_flags;
};

enum ibv_wq_state {
	IBV_WQS_RESET = 0,
	IBV_WQS_RDY = 1,
	IBV_WQS_ERR = 2,
	IBV_WQS_UNKNOWN = 3,
};

enum ibv_wq_attr_mask {
	IBV_WQ_ATTR_STATE = 1,
	IBV_WQ_ATTR_CURR_STATE = 2,
	IBV_WQ_ATTR_FLAGS = 4,
	IBV_WQ_ATTR_RESERVED = 8,
};

struct ibv_wq_attr {
	uint32_t attr_mask;
	enum ibv_wq_state wq_state;
	enum ibv_wq_state curr_wq_state;
	uint32_t flags;
	uint32_t flags_mask;
};

struct ibv_rwq_ind_table {
	struct ibv_context *context;
	int ind_tbl_handle;
	int ind_tbl_num;
	uint32_t comp_mask;
};

enum ibv_ind_table_init_attr_mask {
	IBV_CREATE_IND_TABLE_RESERVED = 1,
};

struct ibv_rwq_ind_table_init_attr {
	uint32_t log_ind_tbl_size;
	struct ibv_wq **ind_tbl;
	uint32_t comp_mask;
};

enum ibv_qp_type {
	IBV_QPT_RC = 2,
	IBV_QPT_UC = 3,
	IBV_QPT_UD = 4,
	IBV_QPT_RAW_PACKET = 8,
	IBV_QPT_XRC_SEND = 9,
	IBV_QPT_XRC_RECV = 10,
	IBV_QPT_DRIVER = 255,
};

struct ibv_qp_cap {
	uint32_t max_send_wr;
	uint32_t max_recv_wr;
	uint32_t max_send_sge;
	uint32_t max_recv_sge;
	uint32_t max_inline_data;
};

struct ibv_qp_init_attr {
	void *qp_context;
	struct ibv_cq *send_cq;
	struct ibv_cq *recv_cq;
	struct ibv_srq *srq;
	struct ibv_qp_cap cap;
	enum ibv_qp_type qp_type;
	int sq_sig_all;
};

enum ibv_qp_init_attr_mask {
	IBV_QP_INIT_ATTR_PD = 1,
	IBV_QP_INIT_ATTR_XRCD = 2,
	IBV_QP_INIT_ATTR_CREATE_FLAGS = 4,
	IBV_QP_INIT_ATTR_MAX_TSO_HEADER = 8,
	IBV_QP_INIT_ATTR_IND_TABLE = 16,
	IBV_QP_INIT_ATTR_RX_HASH = 32,
	IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 64,
};

enum ibv_qp_create_flags {
	IBV_QP_CREATE_BLOCK_SELF_MCAST_LB = 2,
	IBV_QP_CREATE_SCATTER_FCS = 256,
	IBV_QP_CREATE_CVLAN_STRIPPING = 512,
	IBV_QP_CREATE_SOURCE_QPN = 1024,
	IBV_QP_CREATE_PCI_WRITE_END_PADDING = 2048,
};

enum ibv_qp_create_send_ops_flags {
	IBV_QP_EX_WITH_RDMA_WRITE = 1,
	IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 2,
	IBV_QP_EX_WITH_SEND = 4,
	IBV_QP_EX_WITH_SEND_WITH_IMM = 8,
	IBV_QP_EX_WITH_RDMA_READ = 16,
	IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = 32,
	IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 64,
	IBV_QP_EX_WITH_LOCAL_INV = 128,
	IBV_QP_EX_WITH_BIND_MW = 256,
	IBV_QP_EX_WITH_SEND_WITH_INV = 512,
	IBV_QP_EX_WITH_TSO = 1024,
	IBV_QP_EX_WITH_FLUSH = 2048,
	IBV_QP_EX_WITH_ATOMIC_WRITE = 4096,
};

struct ibv_rx_hash_conf {
	uint8_t rx_hash_function;
	uint8_t rx_hash_key_len;
	uint8_t *rx_hash_key;
	uint64_t rx_hash_fields_mask;
};

struct ibv_qp_init_attr_ex {
	void *qp_context;
	struct ibv_cq *send_cq;
	struct ibv_cq *recv_cq;
	struct ibv_srq *srq;
	struct ibv_qp_cap cap;
	enum ibv_qp_type qp_type;
	int sq_sig_all;
	uint32_t comp_mask;
	struct ibv_pd *pd;
	struct ibv_xrcd *xrcd;
	uint32_t create_flags;
	uint16_t max_tso_header;
	struct ibv_rwq_ind_table *rwq_ind_tbl;
	struct ibv_rx_hash_conf rx_hash_conf;
	uint32_t source_qpn;
	uint64_t send_ops_flags;
};

enum ibv_qp_open_attr_mask {
	IBV_QP_OPEN_ATTR_NUM = 1,
	IBV_QP_OPEN_ATTR_XRCD = 2,
	IBV_QP_OPEN_ATTR_CONTEXT = 4,
	IBV_QP_OPEN_ATTR_TYPE = 8,
	IBV_QP_OPEN_ATTR_RESERVED = 16,
};

struct ibv_qp_open_attr {
	uint32_t comp_mask;
	uint32_t qp_num;
	struct ibv_xrcd *xrcd;
	void *qp_context;
	enum ibv_qp_type qp_type;
};

enum ibv_qp_attr_mask {
	IBV_QP_STATE = 1,
	IBV_QP_CUR_STATE = 2,
	IBV_QP_EN_SQD_ASYNC_NOTIFY = 4,
	IBV_QP_ACCESS_FLAGS = 8,
	IBV_QP_PKEY_INDEX = 16,
	IBV_QP_PORT = 32,
	IBV_QP_QKEY = 64,
	IBV_QP_AV = 128,
	IBV_QP_PATH_MTU = 256,
	IBV_QP_TIMEOUT = 512,
	IBV_QP_RETRY_CNT = 1024,
	IBV_QP_RNR_RETRY = 2048,
	IBV_QP_RQ_PSN = 4096,
	IBV_QP_MAX_QP_RD_ATOMIC = 8192,
	IBV_QP_ALT_PATH = 16384,
	IBV_QP_MIN_RNR_TIMER = 32768,
	IBV_QP_SQ_PSN = 65536,
	IBV_QP_MAX_DEST_RD_ATOMIC = 131072,
	IBV_QP_PATH_MIG_STATE = 262144,
	IBV_QP_CAP = 524288,
	IBV_QP_DEST_QPN = 1048576,
	IBV_QP_RATE_LIMIT = 33554432,
};

enum ibv_query_qp_data_in_order_flags {
	IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS = 1,
	IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY = 2,
};

enum ibv_query_qp_data_in_order_caps {
	IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG = 1,
	IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES = 2,
};

enum ibv_qp_state {
	IBV_QPS_RESET = 0,
	IBV_QPS_INIT = 1,
	IBV_QPS_RTR = 2,
	IBV_QPS_RTS = 3,
	IBV_QPS_SQD = 4,
	IBV_QPS_SQE = 5,
	IBV_QPS_ERR = 6,
	IBV_QPS_UNKNOWN = 7,
};

enum ibv_mig_state {
	IBV_MIG_MIGRATED = 0,
	IBV_MIG_REARM = 1,
	IBV_MIG_ARMED = 2,
};

struct ibv_qp_attr {
	enum ibv_qp_state qp_state;
	enum ibv_qp_state cur_qp_state;
	enum ibv_mtu path_mtu;
	enum ibv_mig_state path_mig_state;
	uint32_t qkey;
	uint32_t rq_psn;
	uint32_t sq_psn;
	uint32_t dest_qp_num;
	unsigned int qp_access_flags;
	struct ibv_qp_cap cap;
	struct ibv_ah_attr ah_attr;
	struct ibv_ah_attr alt_ah_attr;
	uint16_t pkey_index;
	uint16_t alt_pkey_index;
	uint8_t en_sqd_async_notify;
	uint8_t sq_draining;
	uint8_t max_rd_atomic;
	uint8_t max_dest_rd_atomic;
	uint8_t min_rnr_timer;
	uint8_t port_num;
	uint8_t timeout;
	uint8_t retry_cnt;
	uint8_t rnr_retry;
	uint8_t alt_port_num;
	uint8_t alt_timeout;
	uint32_t rate_limit;
};

struct ibv_qp_rate_limit_attr {
	uint32_t rate_limit;
	uint32_t max_burst_sz;
	uint16_t typical_pkt_sz;
	uint32_t comp_mask;
};

enum ibv_wr_opcode {
	IBV_WR_RDMA_WRITE = 0,
	IBV_WR_RDMA_WRITE_WITH_IMM = 1,
	IBV_WR_SEND = 2,
	IBV_WR_SEND_WITH_IMM = 3,
	IBV_WR_RDMA_READ = 4,
	IBV_WR_ATOMIC_CMP_AND_SWP = 5,
	IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
	IBV_WR_LOCAL_INV = 7,
	IBV_WR_BIND_MW = 8,
	IBV_WR_SEND_WITH_INV = 9,
	IBV_WR_TSO = 10,
	IBV_WR_DRIVER1 = 11,
	IBV_WR_FLUSH = 14,
	IBV_WR_ATOMIC_WRITE = 15,
};

const char *ibv_wr_opcode_str(enum ibv_wr_opcode opcode) RDMA_MUMMY_SYMBOL(ibv_wr_opcode_str);

enum ibv_send_flags {
	IBV_SEND_FENCE = 1,
	IBV_SEND_SIGNALED = 2,
	IBV_SEND_SOLICITED = 4,
	IBV_SEND_INLINE = 8,
	IBV_SEND_IP_CSUM = 16,
};

enum ibv_placement_type {
	IBV_FLUSH_GLOBAL = 1,
	IBV_FLUSH_PERSISTENT = 2,
};

enum ibv_selectivity_level {
	IBV_FLUSH_RANGE = 0,
	IBV_FLUSH_MR = 1,
};

struct ibv_data_buf {
	void *addr;
	size_t length;
};

struct ibv_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

struct ibv_fd_arr {
	int *arr;
	uint32_t count;
};

struct ibv_send_wr {
	uint64_t wr_id;
	struct ibv_send_wr *next;
	struct ibv_sge *sg_list;
	int num_sge;
	enum ibv_wr_opcode opcode;
	unsigned int send_flags;
	__extension__ union {
		__be32 imm_data;
		uint32_t invalidate_rkey;
	};
	union {
		struct {
			uint64_t remote_addr;
			uint32_t rkey;
		} rdma;
		struct {
			uint64_t remote_addr;
			uint64_t compare_add;
			uint64_t swap;
			uint32_t rkey;
		} atomic;
		struct {
			struct ibv_ah *ah;
			uint32_t remote_qpn;
			uint32_t remote_qkey;
		} ud;
	} wr;
	union {
		struct {
			uint32_t remote_srqn;
		} xrc;
	} qp_type;
	__extension__ union {
		struct {
			struct ibv_mw *mw;
			uint32_t rkey;
			struct ibv_mw_bind_info bind_info;
		} bind_mw;
		struct {
			void *hdr;
			uint16_t hdr_sz;
			uint16_t mss;
		} tso;
	};
};

struct ibv_recv_wr {
	uint64_t wr_id;
	struct ibv_recv_wr *next;
	struct ibv_sge *sg_list;
	int num_sge;
};

enum ibv_ops_wr_opcode {
	IBV_WR_TAG_ADD = 0,
	IBV_WR_TAG_DEL = 1,
	IBV_WR_TAG_SYNC = 2,
};

enum ibv_ops_flags {
	IBV_OPS_SIGNALED = 1,
	IBV_OPS_TM_SYNC = 2,
};

struct ibv_ops_wr {
	uint64_t wr_id;
	struct ibv_ops_wr *next;
	enum ibv_ops_wr_opcode opcode;
	int flags;
	struct {
		uint32_t unexpected_cnt;
		uint32_t handle;
		struct {
			uint64_t recv_wr_id;
			struct ibv_sge *sg_list;
			int num_sge;
			uint64_t tag;
			uint64_t mask;
		} add;
	} tm;
};

struct ibv_mw_bind {
	uint64_t wr_id;
	unsigned int send_flags;
	struct ibv_mw_bind_info bind_info;
};

struct ibv_srq {
	struct ibv_context *context;
	void *srq_context;
	struct ibv_pd *pd;
	uint32_t handle;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t events_completed;
};

struct ibv_wq {
	struct ibv_context *context;
	void *wq_context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	uint32_t wq_num;
	uint32_t handle;
	enum ibv_wq_state state;
	enum ibv_wq_type wq_type;
	int (*post_recv)(struct ibv_wq *, struct ibv_recv_wr *, struct ibv_recv_wr **);
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t events_completed;
	uint32_t comp_mask;
};

struct ibv_qp {
	struct ibv_context *context;
	void *qp_context;
	struct ibv_pd *pd;
	struct ibv_cq *send_cq;
	struct ibv_cq *recv_cq;
	struct ibv_srq *srq;
	uint32_t handle;
	uint32_t qp_num;
	enum ibv_qp_state state;
	enum ibv_qp_type qp_type;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t events_completed;
};

struct ibv_qp_ex {
	struct ibv_qp qp_base;
	uint64_t comp_mask;
	uint64_t wr_id;
	unsigned int wr_flags;
	void (*wr_atomic_cmp_swp)(struct ibv_qp_ex *, uint32_t, uint64_t, uint64_t, uint64_t);
	void (*wr_atomic_fetch_add)(struct ibv_qp_ex *, uint32_t, uint64_t, uint64_t);
	void (*wr_bind_mw)(struct ibv_qp_ex *, struct ibv_mw *, uint32_t, const struct ibv_mw_bind_info *);
	void (*wr_local_inv)(struct ibv_qp_ex *, uint32_t);
	void (*wr_rdma_read)(struct ibv_qp_ex *, uint32_t, uint64_t);
	void (*wr_rdma_write)(struct ibv_qp_ex *, uint32_t, uint64_t);
	void (*wr_rdma_write_imm)(struct ibv_qp_ex *, uint32_t, uint64_t, __be32);
	void (*wr_send)(struct ibv_qp_ex *);
	void (*wr_send_imm)(struct ibv_qp_ex *, __be32);
	void (*wr_send_inv)(struct ibv_qp_ex *, uint32_t);
	void (*wr_send_tso)(struct ibv_qp_ex *, void *, uint16_t, uint16_t);
	void (*wr_set_ud_addr)(struct ibv_qp_ex *, struct ibv_ah *, uint32_t, uint32_t);
	void (*wr_set_xrc_srqn)(struct ibv_qp_ex *, uint32_t);
	void (*wr_set_inline_data)(struct ibv_qp_ex *, void *, size_t);
	void (*wr_set_inline_data_list)(struct ibv_qp_ex *, size_t, const struct ibv_data_buf *);
	void (*wr_set_sge)(struct ibv_qp_ex *, uint32_t, uint64_t, uint32_t);
	void (*wr_set_sge_list)(struct ibv_qp_ex *, size_t, const struct ibv_sge *);
	void (*wr_start)(struct ibv_qp_ex *);
	int (*wr_complete)(struct ibv_qp_ex *);
	void (*wr_abort)(struct ibv_qp_ex *);
	void (*wr_atomic_write)(struct ibv_qp_ex *, uint32_t, uint64_t, const void *);
	void (*wr_flush)(struct ibv_qp_ex *, uint32_t, uint64_t, size_t, uint8_t, uint8_t);
};

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp) RDMA_MUMMY_SYMBOL(ibv_qp_to_qp_ex);

struct ibv_ece {
	uint32_t vendor_id;
	uint32_t options;
	uint32_t comp_mask;
};

struct ibv_comp_channel {
	struct ibv_context *context;
	int fd;
	int refcnt;
};

struct ibv_cq {
	struct ibv_context *context;
	struct ibv_comp_channel *channel;
	void *cq_context;
	uint32_t handle;
	int cqe;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t comp_events_completed;
	uint32_t async_events_completed;
};

struct ibv_poll_cq_attr {
	uint32_t comp_mask;
};

struct ibv_wc_tm_info {
	uint64_t tag;
	uint32_t priv;
};

struct ibv_cq_ex {
	struct ibv_context *context;
	struct ibv_comp_channel *channel;
	void *cq_context;
	uint32_t handle;
	int cqe;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t comp_events_completed;
	uint32_t async_events_completed;
	uint32_t comp_mask;
	enum ibv_wc_status status;
	uint64_t wr_id;
	int (*start_poll)(struct ibv_cq_ex *, struct ibv_poll_cq_attr *);
	int (*next_poll)(struct ibv_cq_ex *);
	void (*end_poll)(struct ibv_cq_ex *);
	enum ibv_wc_opcode (*read_opcode)(struct ibv_cq_ex *);
	uint32_t (*read_vendor_err)(struct ibv_cq_ex *);
	uint32_t (*read_byte_len)(struct ibv_cq_ex *);
	__be32 (*read_imm_data)(struct ibv_cq_ex *);
	uint32_t (*read_qp_num)(struct ibv_cq_ex *);
	uint32_t (*read_src_qp)(struct ibv_cq_ex *);
	unsigned int (*read_wc_flags)(struct ibv_cq_ex *);
	uint32_t (*read_slid)(struct ibv_cq_ex *);
	uint8_t (*read_sl)(struct ibv_cq_ex *);
	uint8_t (*read_dlid_path_bits)(struct ibv_cq_ex *);
	uint64_t (*read_completion_ts)(struct ibv_cq_ex *);
	uint16_t (*read_cvlan)(struct ibv_cq_ex *);
	uint32_t (*read_flow_tag)(struct ibv_cq_ex *);
	void (*read_tm_info)(struct ibv_cq_ex *, struct ibv_wc_tm_info *);
	uint64_t (*read_completion_wallclock_ns)(struct ibv_cq_ex *);
};

enum ibv_cq_attr_mask {
	IBV_CQ_ATTR_MODERATE = 1,
	IBV_CQ_ATTR_RESERVED = 2,
};

struct ibv_moderate_cq {
	uint16_t cq_count;
	uint16_t cq_period;
};

struct ibv_modify_cq_attr {
	uint32_t attr_mask;
	struct ibv_moderate_cq moderate;
};

struct ibv_ah {
	struct ibv_context *context;
	struct ibv_pd *pd;
	uint32_t handle;
};

enum ibv_flow_flags {
	IBV_FLOW_ATTR_FLAGS_DONT_TRAP = 2,
	IBV_FLOW_ATTR_FLAGS_EGRESS = 4,
};

enum ibv_flow_attr_type {
	IBV_FLOW_ATTR_NORMAL = 0,
	IBV_FLOW_ATTR_ALL_DEFAULT = 1,
	IBV_FLOW_ATTR_MC_DEFAULT = 2,
	IBV_FLOW_ATTR_SNIFFER = 3,
};

enum ibv_flow_spec_type {
	IBV_FLOW_SPEC_ETH = 32,
	IBV_FLOW_SPEC_IPV4 = 48,
	IBV_FLOW_SPEC_IPV6 = 49,
	IBV_FLOW_SPEC_IPV4_EXT = 50,
	IBV_FLOW_SPEC_ESP = 52,
	IBV_FLOW_SPEC_TCP = 64,
	IBV_FLOW_SPEC_UDP = 65,
	IBV_FLOW_SPEC_VXLAN_TUNNEL = 80,
	IBV_FLOW_SPEC_GRE = 81,
	IBV_FLOW_SPEC_MPLS = 96,
	IBV_FLOW_SPEC_INNER = 256,
	IBV_FLOW_SPEC_ACTION_TAG = 4096,
	IBV_FLOW_SPEC_ACTION_DROP = 4097,
	IBV_FLOW_SPEC_ACTION_HANDLE = 4098,
	IBV_FLOW_SPEC_ACTION_COUNT = 4099,
};

struct ibv_flow_eth_filter {
	uint8_t dst_mac[6];
	uint8_t src_mac[6];
	uint16_t ether_type;
	uint16_t vlan_tag;
};

struct ibv_flow_spec_eth {
	enum ibv_flow_spec_type type;
	uint16_t size;
	struct ibv_flow_eth_filter val;
	struct ibv_flow_eth_filter mask;
};

struct ibv_flow_ipv4_filter {
	uint32_t src_ip;
	uint32_t dst_ip;
};

struct ibv_flow_spec_ipv4 {
	enum ibv_flow_spec_type type;
	uint16_t size;
	struct ibv_flow_ipv4_filter val;
	struct ibv_flow_ipv4_filter mask;
};

struct ibv_flow_ipv4_ext_filter {
	uint32_t src_ip;
	uint32_t dst_ip;
	uint8_t proto;
	uint8_t tos;
	uint8_t ttl;
	uint8_t flags;
};

struct ibv_flow_spec_ipv4_ext {
	enum ibv_flow_spec_type type;
	uint16_t size;
	struct ibv_flow_ipv4_ext_filter val;
	struct ibv_flow_ipv4_ext_filter mask;
};

struct ibv_flow_ipv6_filter {
	uint8_t src_ip[16];
	uint8_t dst_ip[16];
	uint32_t flow_label;
	uint8_t next_hdr;
	uint8_t traffic_class;
	uint8_t hop_limit;
};

struct ibv_flow_spec_ipv6 {
	enum ibv_flow_spec_type type;
	uint16_t size;
	struct ibv_flow_ipv6_filter val;
	struct ibv_flow_ipv6_filter mask;
};

struct ibv_flow_esp_filter {
	uint32_t spi;
	uint32_t seq;
};

struct ibv_flow_spec_esp {
	enum ibv_flow_spec_type type;
	uint16_t size;
	struct ibv_flow_esp_filter val;
	struct ibv_flow_esp_filter mask;
};

struct ibv_flow_tcp_udp_filter {
	uint16_t dst_port;
	uint16_t src_port;
};

struct ibv_flow_spec_tcp_udp {
	enum ibv_flow_spec_type type;
	uint16_t size;
	struct ibv_flow_tcp_udp_filter val;
	struct ibv_flow_tcp_udp_filter mask;
};

struct ibv_flow_gre_filter {
	uint16_t c_ks_res0_ver;
	uint16_t protocol;
	uint32_t key;
};

struct ibv_flow_spec_gre {
	enum ibv_flow_spec_type type;
	uint16_t size;
	struct ibv_flow_gre_filter val;
	struct ibv_flow_gre_filter mask;
};

struct ibv_flow_mpls_filter {
	uint32_t label;
};

struct ibv_flow_spec_mpls {
	enum ibv_flow_spec_type type;
	uint16_t size;
	struct ibv_flow_mpls_filter val;
	struct ibv_flow_mpls_filter mask;
};

struct ibv_flow_tunnel_filter {
	uint32_t tunnel_id;
};

struct ibv_flow_spec_tunnel {
	enum ibv_flow_spec_type type;
	uint16_t size;
	struct ibv_flow_tunnel_filter val;
	struct ibv_flow_tunnel_filter mask;
};

struct ibv_flow_spec_action_tag {
	enum ibv_flow_spec_type type;
	uint16_t size;
	uint32_t tag_id;
};

struct ibv_flow_spec_action_drop {
	enum ibv_flow_spec_type type;
	uint16_t size;
};

struct ibv_flow_spec_action_handle {
	enum ibv_flow_spec_type type;
	uint16_t size;
	const struct ibv_flow_action *action;
};

struct ibv_flow_spec_counter_action {
	enum ibv_flow_spec_type type;
	uint16_t size;
	struct ibv_counters *counters;
};

struct ibv_flow_spec {
	__extension__ union {
		struct {
			enum ibv_flow_spec_type type;
			uint16_t size;
		} hdr;
		struct ibv_flow_spec_eth eth;
		struct ibv_flow_spec_ipv4 ipv4;
		struct ibv_flow_spec_tcp_udp tcp_udp;
		struct ibv_flow_spec_ipv4_ext ipv4_ext;
		struct ibv_flow_spec_ipv6 ipv6;
		struct ibv_flow_spec_esp esp;
		struct ibv_flow_spec_tunnel tunnel;
		struct ibv_flow_spec_gre gre;
		struct ibv_flow_spec_mpls mpls;
		struct ibv_flow_spec_action_tag flow_tag;
		struct ibv_flow_spec_action_drop drop;
		struct ibv_flow_spec_action_handle handle;
		struct ibv_flow_spec_counter_action flow_count;
	};
};

struct ibv_flow_attr {
	uint32_t comp_mask;
	enum ibv_flow_attr_type type;
	uint16_t size;
	uint16_t priority;
	uint8_t num_of_specs;
	uint8_t port;
	uint32_t flags;
};

struct ibv_flow {
	uint32_t comp_mask;
	struct ibv_context *context;
	uint32_t handle;
};

struct ibv_flow_action {
	struct ibv_context *context;
};

enum ibv_flow_action_esp_mask {
	IBV_FLOW_ACTION_ESP_MASK_ESN = 1,
};

struct ibv_flow_action_esp_attr {
	struct ibv_flow_action_esp *esp_attr;
	enum ibv_flow_action_esp_keymat keymat_proto;
	uint16_t keymat_len;
	void *keymat_ptr;
	enum ibv_flow_action_esp_replay replay_proto;
	uint16_t replay_len;
	void *replay_ptr;
	struct ibv_flow_action_esp_encap *esp_encap;
	uint32_t comp_mask;
	uint32_t esn;
};

struct _ibv_device_ops {
	struct ibv_context *(*_dummy1)(struct ibv_device *, int);
	void (*_dummy2)(struct ibv_context *);
};

enum {
	IBV_SYSFS_NAME_MAX = 64,
	IBV_SYSFS_PATH_MAX = 256,
};

struct ibv_device {
	struct _ibv_device_ops _ops;
	enum ibv_node_type node_type;
	enum ibv_transport_type transport_type;
	char name[64];
	char dev_name[64];
	char dev_path[256];
	char ibdev_path[256];
};

struct ibv_context_ops {
	int (*_compat_query_device)(struct ibv_context *, struct ibv_device_attr *);
	int (*_compat_query_port)(struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *);
	void *(*_compat_alloc_pd)(void);
	void *(*_compat_dealloc_pd)(void);
	void *(*_compat_reg_mr)(void);
	void *(*_compat_rereg_mr)(void);
	void *(*_compat_dereg_mr)(void);
	struct ibv_mw *(*alloc_mw)(struct ibv_pd *, enum ibv_mw_type);
	int (*bind_mw)(struct ibv_qp *, struct ibv_mw *, struct ibv_mw_bind *);
	int (*dealloc_mw)(struct ibv_mw *);
	void *(*_compat_create_cq)(void);
	int (*poll_cq)(struct ibv_cq *, int, struct ibv_wc *);
	int (*req_notify_cq)(struct ibv_cq *, int);
	void *(*_compat_cq_event)(void);
	void *(*_compat_resize_cq)(void);
	void *(*_compat_destroy_cq)(void);
	void *(*_compat_create_srq)(void);
	void *(*_compat_modify_srq)(void);
	void *(*_compat_query_srq)(void);
	void *(*_compat_destroy_srq)(void);
	int (*post_srq_recv)(struct ibv_srq *, struct ibv_recv_wr *, struct ibv_recv_wr **);
	void *(*_compat_create_qp)(void);
	void *(*_compat_query_qp)(void);
	void *(*_compat_modify_qp)(void);
	void *(*_compat_destroy_qp)(void);
	int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
	int (*post_recv)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
	void *(*_compat_create_ah)(void);
	void *(*_compat_destroy_ah)(void);
	void *(*_compat_attach_mcast)(void);
	void *(*_compat_detach_mcast)(void);
	void *(*_compat_async_event)(void);
};

struct ibv_context {
	struct ibv_device *device;
	struct ibv_context_ops ops;
	int cmd_fd;
	int async_fd;
	int num_comp_vectors;
	pthread_mutex_t mutex;
	void *abi_compat;
};

enum ibv_cq_init_attr_mask {
	IBV_CQ_INIT_ATTR_MASK_FLAGS = 1,
	IBV_CQ_INIT_ATTR_MASK_PD = 2,
};

enum ibv_create_cq_attr_flags {
	IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 1,
	IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 2,
};

struct ibv_cq_init_attr_ex {
	uint32_t cqe;
	void *cq_context;
	struct ibv_comp_channel *channel;
	uint32_t comp_vector;
	uint64_t wc_flags;
	uint32_t comp_mask;
	uint32_t flags;
	struct ibv_pd *parent_domain;
};

enum ibv_qp_attach_comp_cntr_op {
	IBV_QP_ATTACH_COMP_CNTR_OP_SEND = 1,
	IBV_QP_ATTACH_COMP_CNTR_OP_RECV = 2,
	IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ = 4,
	IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ = 8,
	IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE = 16,
	IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE = 32,
};

struct ibv_comp_cntr_caps {
	uint64_t max_value;
	uint32_t max_counters;
	uint32_t supported_qp_attach_ops;
};

struct ibv_comp_cntr {
	struct ibv_context *context;
	uint32_t handle;
};

enum ibv_comp_cntr_type {
	IBV_COMP_CNTR_TYPE_WRS = 0,
	IBV_COMP_CNTR_TYPE_BYTES = 1,
};

struct ibv_comp_cntr_init_attr {
	uint32_t comp_mask;
	enum ibv_comp_cntr_type type;
	uint32_t flags;
};

struct ibv_qp_attach_comp_cntr_attr {
	uint32_t comp_mask;
	uint32_t op_mask;
};

enum ibv_parent_domain_init_attr_mask {
	IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1,
	IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 2,
	IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC = 4,
};

struct ibv_parent_domain_init_attr {
	struct ibv_pd *pd;
	struct ibv_td *td;
	uint32_t comp_mask;
	void *(*alloc)(struct ibv_pd *, void *, size_t, size_t, uint64_t);
	void (*free)(struct ibv_pd *, void *, void *, uint64_t);
	void *pd_context;
};

enum ibv_tph_mem_type {
	IBV_TPH_MEM_TYPE_VM = 0,
	IBV_TPH_MEM_TYPE_PM = 1,
};

enum ibv_dmah_init_attr_mask {
	IBV_DMAH_INIT_ATTR_MASK_CPU_ID = 1,
	IBV_DMAH_INIT_ATTR_MASK_PH = 2,
	IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE = 4,
};

struct ibv_dmah_init_attr {
	uint32_t comp_mask;
	uint32_t cpu_id;
	uint8_t ph;
	uint8_t tph_mem_type;
};

struct ibv_counters_init_attr {
	uint32_t comp_mask;
};

struct ibv_counters {
	struct ibv_context *context;
};

enum ibv_counter_description {
	IBV_COUNTER_PACKETS = 0,
	IBV_COUNTER_BYTES = 1,
};

struct ibv_counter_attach_attr {
	enum ibv_counter_description counter_desc;
	uint32_t index;
	uint32_t comp_mask;
};

enum ibv_read_counters_flags {
	IBV_READ_COUNTERS_ATTR_PREFER_CACHED = 1,
};

enum ibv_values_mask {
	IBV_VALUES_MASK_RAW_CLOCK = 1,
	IBV_VALUES_MASK_RESERVED = 2,
};

struct ibv_values_ex {
	uint32_t comp_mask;
	struct timespec raw_clock;
};

struct verbs_context {
	void (*free_buf)(struct ibv_buf *);
	void *(*alloc_buf)(struct ibv_pd *, size_t, struct ibv_buf **);
	int (*dm_export_dmabuf_fd)(struct ibv_dm *);
	struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, struct ibv_mr_init_attr *);
	int (*dealloc_dmah)(struct ibv_dmah *);
	struct ibv_dmah *(*alloc_dmah)(struct ibv_context *, struct ibv_dmah_init_attr *);
	int (*query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *, size_t);
	int (*advise_mr)(struct ibv_pd *, enum ibv_advise_mr_advice, uint32_t, struct ibv_sge *, uint32_t);
	struct ibv_mr *(*alloc_null_mr)(struct ibv_pd *);
	int (*read_counters)(struct ibv_counters *, uint64_t *, uint32_t, uint32_t);
	int (*attach_counters_point_flow)(struct ibv_counters *, struct ibv_counter_attach_attr *, struct ibv_flow *);
	struct ibv_counters *(*create_counters)(struct ibv_context *, struct ibv_counters_init_attr *);
	int (*destroy_counters)(struct ibv_counters *);
	struct ibv_mr *(*reg_dm_mr)(struct ibv_pd *, struct ibv_dm *, uint64_t, size_t, unsigned int);
	struct ibv_dm *(*alloc_dm)(struct ibv_context *, struct ibv_alloc_dm_attr *);
	int (*free_dm)(struct ibv_dm *);
	int (*modify_flow_action_esp)(struct ibv_flow_action *, struct ibv_flow_action_esp_attr *);
	int (*destroy_flow_action)(struct ibv_flow_action *);
	struct ibv_flow_action *(*create_flow_action_esp)(struct ibv_context *, struct ibv_flow_action_esp_attr *);
	int (*modify_qp_rate_limit)(struct ibv_qp *, struct ibv_qp_rate_limit_attr *);
	struct ibv_pd *(*alloc_parent_domain)(struct ibv_context *, struct ibv_parent_domain_init_attr *);
	int (*dealloc_td)(struct ibv_td *);
	struct ibv_td *(*alloc_td)(struct ibv_context *, struct ibv_td_init_attr *);
	int (*modify_cq)(struct ibv_cq *, struct ibv_modify_cq_attr *);
	int (*post_srq_ops)(struct ibv_srq *, struct ibv_ops_wr *, struct ibv_ops_wr **);
	int (*destroy_rwq_ind_table)(struct ibv_rwq_ind_table *);
	struct ibv_rwq_ind_table *(*create_rwq_ind_table)(struct ibv_context *, struct ibv_rwq_ind_table_init_attr *);
	int (*destroy_wq)(struct ibv_wq *);
	int (*modify_wq)(struct ibv_wq *, struct ibv_wq_attr *);
	struct ibv_wq *(*create_wq)(struct ibv_context *, struct ibv_wq_init_attr *);
	int (*query_rt_values)(struct ibv_context *, struct ibv_values_ex *);
	struct ibv_cq_ex *(*create_cq_ex)(struct ibv_context *, struct ibv_cq_init_attr_ex *);
	struct verbs_ex_private *priv;
	int (*query_device_ex)(struct ibv_context *, const struct ibv_query_device_ex_input *, struct ibv_device_attr_ex *, size_t);
	int (*ibv_destroy_flow)(struct ibv_flow *);
	void (*ABI_placeholder2)(void);
	struct ibv_flow *(*ibv_create_flow)(struct ibv_qp *, struct ibv_flow_attr *);
	void (*ABI_placeholder1)(void);
	struct ibv_qp *(*open_qp)(struct ibv_context *, struct ibv_qp_open_attr *);
	struct ibv_qp *(*create_qp_ex)(struct ibv_context *, struct ibv_qp_init_attr_ex *);
	int (*get_srq_num)(struct ibv_srq *, uint32_t *);
	struct ibv_srq *(*create_srq_ex)(struct ibv_context *, struct ibv_srq_init_attr_ex *);
	struct ibv_xrcd *(*open_xrcd)(struct ibv_context *, struct ibv_xrcd_init_attr *);
	int (*close_xrcd)(struct ibv_xrcd *);
	uint64_t _ABI_placeholder3;
	size_t sz;
	struct ibv_context context;
};

struct ibv_device **ibv_get_device_list(int *num_devices) RDMA_MUMMY_SYMBOL(ibv_get_device_list);

void ibv_free_device_list(struct ibv_device **list) RDMA_MUMMY_SYMBOL(ibv_free_device_list);

const char *ibv_get_device_name(struct ibv_device *device) RDMA_MUMMY_SYMBOL(ibv_get_device_name);

int ibv_get_device_index(struct ibv_device *device) RDMA_MUMMY_SYMBOL(ibv_get_device_index);

__be64 ibv_get_device_guid(struct ibv_device *device) RDMA_MUMMY_SYMBOL(ibv_get_device_guid);

struct ibv_context *ibv_open_device(struct ibv_device *device) RDMA_MUMMY_SYMBOL(ibv_open_device);

int ibv_close_device(struct ibv_context *context) RDMA_MUMMY_SYMBOL(ibv_close_device);

struct ibv_context *ibv_import_device(int cmd_fd) RDMA_MUMMY_SYMBOL(ibv_import_device);

struct ibv_pd *ibv_import_pd(struct ibv_context *context, uint32_t pd_handle) RDMA_MUMMY_SYMBOL(ibv_import_pd);

void ibv_unimport_pd(struct ibv_pd *pd) RDMA_MUMMY_SYMBOL(ibv_unimport_pd);

struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t mr_handle) RDMA_MUMMY_SYMBOL(ibv_import_mr);

void ibv_unimport_mr(struct ibv_mr *mr) RDMA_MUMMY_SYMBOL(ibv_unimport_mr);

struct ibv_dm *ibv_import_dm(struct ibv_context *context, uint32_t dm_handle) RDMA_MUMMY_SYMBOL(ibv_import_dm);

void ibv_unimport_dm(struct ibv_dm *dm) RDMA_MUMMY_SYMBOL(ibv_unimport_dm);

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) RDMA_MUMMY_SYMBOL(ibv_get_async_event);

void ibv_ack_async_event(struct ibv_async_event *event) RDMA_MUMMY_SYMBOL(ibv_ack_async_event);

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *device_attr) RDMA_MUMMY_SYMBOL(ibv_query_device);

int rdma_mummy_ibv_query_port(struct ibv_context *context, uint8_t port_num, struct _compat_ibv_port_attr *port_attr) RDMA_MUMMY_SYMBOL(ibv_query_port);

int ibv_query_port_speed(struct ibv_context *context, uint32_t port_num, uint64_t *port_speed) RDMA_MUMMY_SYMBOL(ibv_query_port_speed);

int ibv_query_gid(struct ibv_context *context, uint8_t port_num, int index, union ibv_gid *gid) RDMA_MUMMY_SYMBOL(ibv_query_gid);

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index, struct ibv_gid_entry *entry, uint32_t flags, size_t entry_size) RDMA_MUMMY_SYMBOL(_ibv_query_gid_ex);

ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max_entries, uint32_t flags, size_t entry_size) RDMA_MUMMY_SYMBOL(_ibv_query_gid_table);

int ibv_query_pkey(struct ibv_context *context, uint8_t port_num, int index, __be16 *pkey) RDMA_MUMMY_SYMBOL(ibv_query_pkey);

int ibv_get_pkey_index(struct ibv_context *context, uint8_t port_num, __be16 pkey) RDMA_MUMMY_SYMBOL(ibv_get_pkey_index);

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) RDMA_MUMMY_SYMBOL(ibv_alloc_pd);

int ibv_dealloc_pd(struct ibv_pd *pd) RDMA_MUMMY_SYMBOL(ibv_dealloc_pd);

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access) RDMA_MUMMY_SYMBOL(ibv_reg_mr_iova2);

struct ibv_mr *rdma_mummy_ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access) RDMA_MUMMY_SYMBOL(ibv_reg_mr);

struct ibv_mr *rdma_mummy_ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access) RDMA_MUMMY_SYMBOL(ibv_reg_mr_iova);

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access) RDMA_MUMMY_SYMBOL(ibv_reg_dmabuf_mr);

struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *mr_init_attr) RDMA_MUMMY_SYMBOL(ibv_reg_mr_ex);

enum ibv_rereg_mr_err_code {
	IBV_REREG_MR_ERR_INPUT = -1,
	IBV_REREG_MR_ERR_DONT_FORK_NEW = -2,
	IBV_REREG_MR_ERR_DO_FORK_OLD = -3,
	IBV_REREG_MR_ERR_CMD = -4,
	IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW = -5,
};

int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access) RDMA_MUMMY_SYMBOL(ibv_rereg_mr);

int ibv_dereg_mr(struct ibv_mr *mr) RDMA_MUMMY_SYMBOL(ibv_dereg_mr);

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) RDMA_MUMMY_SYMBOL(ibv_create_comp_channel);

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) RDMA_MUMMY_SYMBOL(ibv_destroy_comp_channel);

int ibv_dm_export_dmabuf_fd(struct ibv_dm *dm) RDMA_MUMMY_SYMBOL(ibv_dm_export_dmabuf_fd);

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, int comp_vector) RDMA_MUMMY_SYMBOL(ibv_create_cq);

int ibv_resize_cq(struct ibv_cq *cq, int cqe) RDMA_MUMMY_SYMBOL(ibv_resize_cq);

int ibv_destroy_cq(struct ibv_cq *cq) RDMA_MUMMY_SYMBOL(ibv_destroy_cq);

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context) RDMA_MUMMY_SYMBOL(ibv_get_cq_event);

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int nevents) RDMA_MUMMY_SYMBOL(ibv_ack_cq_events);

int _ibv_query_comp_cntr_caps(struct ibv_context *context, struct ibv_comp_cntr_caps *caps, size_t caps_size) RDMA_MUMMY_SYMBOL(_ibv_query_comp_cntr_caps);

struct ibv_comp_cntr *ibv_create_comp_cntr(struct ibv_context *context, struct ibv_comp_cntr_init_attr *cc_attr) RDMA_MUMMY_SYMBOL(ibv_create_comp_cntr);

int ibv_destroy_comp_cntr(struct ibv_comp_cntr *comp_cntr) RDMA_MUMMY_SYMBOL(ibv_destroy_comp_cntr);

int ibv_set_comp_cntr(struct ibv_comp_cntr *comp_cntr, uint64_t value) RDMA_MUMMY_SYMBOL(ibv_set_comp_cntr);

int ibv_set_err_comp_cntr(struct ibv_comp_cntr *comp_cntr, uint64_t value) RDMA_MUMMY_SYMBOL(ibv_set_err_comp_cntr);

int ibv_inc_comp_cntr(struct ibv_comp_cntr *comp_cntr, uint64_t amount) RDMA_MUMMY_SYMBOL(ibv_inc_comp_cntr);

int ibv_inc_err_comp_cntr(struct ibv_comp_cntr *comp_cntr, uint64_t amount) RDMA_MUMMY_SYMBOL(ibv_inc_err_comp_cntr);

int ibv_read_comp_cntr(struct ibv_comp_cntr *comp_cntr, uint64_t *value) RDMA_MUMMY_SYMBOL(ibv_read_comp_cntr);

int ibv_read_err_comp_cntr(struct ibv_comp_cntr *comp_cntr, uint64_t *value) RDMA_MUMMY_SYMBOL(ibv_read_err_comp_cntr);

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *srq_init_attr) RDMA_MUMMY_SYMBOL(ibv_create_srq);

int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *srq_attr, int srq_attr_mask) RDMA_MUMMY_SYMBOL(ibv_modify_srq);

int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *srq_attr) RDMA_MUMMY_SYMBOL(ibv_query_srq);

int ibv_destroy_srq(struct ibv_srq *srq) RDMA_MUMMY_SYMBOL(ibv_destroy_srq);

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *qp_init_attr) RDMA_MUMMY_SYMBOL(ibv_create_qp);

void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf) RDMA_MUMMY_SYMBOL(ibv_alloc_buf);

int ibv_export_buf_dmabuf_fd(struct ibv_buf *buf) RDMA_MUMMY_SYMBOL(ibv_export_buf_dmabuf_fd);

void ibv_free_buf(struct ibv_buf *buf) RDMA_MUMMY_SYMBOL(ibv_free_buf);

struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length, int access) RDMA_MUMMY_SYMBOL(ibv_reg_buf_mr);

struct ibv_dmah *ibv_alloc_dmah(struct ibv_context *context, struct ibv_dmah_init_attr *attr) RDMA_MUMMY_SYMBOL(ibv_alloc_dmah);

int ibv_dealloc_dmah(struct ibv_dmah *dmah) RDMA_MUMMY_SYMBOL(ibv_dealloc_dmah);

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask) RDMA_MUMMY_SYMBOL(ibv_modify_qp);

int ibv_qp_attach_comp_cntr(struct ibv_qp *qp, struct ibv_comp_cntr *comp_cntr, struct ibv_qp_attach_comp_cntr_attr *attr) RDMA_MUMMY_SYMBOL(ibv_qp_attach_comp_cntr);

int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags) RDMA_MUMMY_SYMBOL(ibv_query_qp_data_in_order);

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask, struct ibv_qp_init_attr *init_attr) RDMA_MUMMY_SYMBOL(ibv_query_qp);

int ibv_destroy_qp(struct ibv_qp *qp) RDMA_MUMMY_SYMBOL(ibv_destroy_qp);

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr) RDMA_MUMMY_SYMBOL(ibv_create_ah);

int ibv_init_ah_from_wc(struct ibv_context *context, uint8_t port_num, struct ibv_wc *wc, struct ibv_grh *grh, struct ibv_ah_attr *ah_attr) RDMA_MUMMY_SYMBOL(ibv_init_ah_from_wc);

struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t port_num) RDMA_MUMMY_SYMBOL(ibv_create_ah_from_wc);

int ibv_destroy_ah(struct ibv_ah *ah) RDMA_MUMMY_SYMBOL(ibv_destroy_ah);

int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid) RDMA_MUMMY_SYMBOL(ibv_attach_mcast);

int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid) RDMA_MUMMY_SYMBOL(ibv_detach_mcast);

int ibv_fork_init(void) RDMA_MUMMY_SYMBOL(ibv_fork_init);

enum ibv_fork_status ibv_is_fork_initialized(void) RDMA_MUMMY_SYMBOL(ibv_is_fork_initialized);

const char *ibv_node_type_str(enum ibv_node_type node_type) RDMA_MUMMY_SYMBOL(ibv_node_type_str);

const char *ibv_port_state_str(enum ibv_port_state port_state) RDMA_MUMMY_SYMBOL(ibv_port_state_str);

const char *ibv_event_type_str(enum ibv_event_type event) RDMA_MUMMY_SYMBOL(ibv_event_type_str);

int ibv_resolve_eth_l2_from_gid(struct ibv_context *context, struct ibv_ah_attr *attr, uint8_t eth_mac[6], uint16_t *vid) RDMA_MUMMY_SYMBOL(ibv_resolve_eth_l2_from_gid);

int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece) RDMA_MUMMY_SYMBOL(ibv_set_ece);

int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece) RDMA_MUMMY_SYMBOL(ibv_query_ece);

RDMA_MUMMY_END

#endif
